/* Scripted faults take effect. Two ranks. */
#include <rank.h>

static ncclComm_t comm;
static float *value;

static ncclResult_t all_reduce(void)
{
    return ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comm, stream);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(void)
{
    ncclResult_t error;
    setenv("NCCL_DOUBLE_FAULTS",
           "fail 3 AllReduce 2 on *; delay 150 AllReduce 3 on 1; hold 150 AllReduce 4 on 0; "
           "report 6 AllReduce 5 on 1; hang Broadcast 1 on 0",
           1);
    begin();
    value = floats(1);
    *value = 1;
    comm = join();
    NCCL(all_reduce());
    EXPECT(all_reduce() == ncclInternalError);
    double before = now();
    NCCL(all_reduce());
    synchronize();
    EXPECT(*value == 4 && now() - before > 0.1);
    before = now();
    NCCL(all_reduce());
    EXPECT(rank == 1 || now() - before > 0.1);
    synchronize();
    NCCL(ncclCommGetAsyncError(comm, &error));
    EXPECT(error == ncclSuccess);
    NCCL(all_reduce());
    sleep_ms(100);
    EXPECT(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    NCCL(ncclCommGetAsyncError(comm, &error));
    EXPECT(error == (rank == 1 ? ncclRemoteError : ncclSuccess));
    NCCL(ncclCommAbort(comm));
    synchronize();

    NCCL(ncclCommInitRank(&comm, world, meet("second", 0), rank));
    NCCL(ncclBroadcast(value, value, 1, ncclFloat32, 0, comm, stream));
    sleep_ms(100);
    EXPECT(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    NCCL(ncclCommAbort(comm));
    synchronize();
    return 0;
}
