/* Groups: launch of calls, effect of errors, and threads. Three ranks. */
#include <rank.h>

#include <pthread.h>

enum { N = 4 };

static ncclComm_t comm;
static float *in, *out;

static void all_reduce(void)
{
    NCCL(ncclAllReduce(in, out, N, ncclFloat32, ncclSum, comm, stream));
}

/* Checks that the communicator works: the sum of three ones is three. */
static void still_works(void)
{
    out[0] = 0;
    all_reduce();
    synchronize();
    EXPECT(out[0] == 3);
}

static void are_launched_at_the_outermost_end(void)
{
    NCCL(ncclGroupStart());
    NCCL(ncclGroupStart());
    out[0] = 0;
    all_reduce();
    NCCL(ncclGroupEnd());
    synchronize();
    EXPECT(out[0] == 0);
    NCCL(ncclGroupEnd());
    synchronize();
    EXPECT(out[0] == 3);
}

static void have_no_order_inside(void)
{
    float *more = floats(2 * N);
    for (int i = 0; i < 2 * N; ++i)
        more[i] = 2;
    NCCL(ncclGroupStart());
    if (rank == 0)
        all_reduce();
    NCCL(ncclAllReduce(more, more, 2 * N, ncclFloat32, ncclSum, comm, stream));
    if (rank != 0)
        all_reduce();
    NCCL(ncclGroupEnd());
    synchronize();
    EXPECT(more[2 * N - 1] == 6 && out[0] == 3);
}

static void fail_as_a_whole(void)
{
    out[0] = 0;
    NCCL(ncclGroupStart());
    all_reduce();
    EXPECT(ncclAllReduce(in, out, N, 99, ncclSum, comm, stream) == ncclInvalidArgument);
    EXPECT(ncclGroupEnd() == ncclInvalidArgument);
    synchronize();
    EXPECT(out[0] == 0);
    EXPECT(ncclGroupEnd() == ncclInvalidUsage);
    still_works();
}

static void are_dropped_by_a_simulation(void)
{
    if (rank == 1) {
        NCCL(ncclGroupStart());
        all_reduce();
        NCCL(ncclGroupSimulateEnd(NULL));
    }
    still_works();
}

static void take_several_streams(void)
{
    CUstream other;
    float *second = floats(N);
    CU(cuStreamCreate(&other, 0));
    second[0] = 5;
    NCCL(ncclGroupStart());
    all_reduce();
    NCCL(ncclAllReduce(second, second, 1, ncclFloat32, ncclSum, comm, other));
    NCCL(ncclGroupEnd());
    CU(cuStreamSynchronize(other));
    EXPECT(second[0] == 15);
    synchronize();
    CU(cuStreamDestroy_v2(other));
}

/* A call in another thread does not belong to this thread's group. */
static void *of_another_thread(void *of)
{
    ncclComm_t theirs = of;
    CUcontext context;
    CUdevice device;
    CUstream own;
    float *value;
    CU(cuDeviceGet(&device, rank));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuStreamCreate(&own, 0));
    value = floats(1);
    *value = 1;
    NCCL(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, theirs, own));
    CU(cuStreamSynchronize(own));
    EXPECT(*value == 3);
    return NULL;
}

static void are_of_one_thread(void)
{
    ncclComm_t theirs;
    pthread_t thread;
    NCCL(ncclCommSplit(comm, 0, rank, &theirs, NULL));
    NCCL(ncclGroupStart());
    all_reduce();
    if (pthread_create(&thread, NULL, of_another_thread, theirs) != 0)
        FAIL("no thread");
    pthread_join(thread, NULL);
    NCCL(ncclGroupEnd());
    synchronize();
    NCCL(ncclCommDestroy(theirs));
}

static void bad_arguments_are_named(void)
{
    EXPECT(ncclAllReduce(in, out, N, ncclFloat32, ncclSum, NULL, stream) == ncclInvalidArgument);
    EXPECT(strcmp(ncclGetLastError(NULL), "AllReduce : comm argument is NULL") == 0);
    EXPECT(ncclBroadcast(in, out, N, ncclFloat32, 3, comm, stream) == ncclInvalidArgument);
    EXPECT(ncclSend(in, N, ncclFloat32, -1, comm, stream) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(NULL, out, N, ncclFloat32, ncclSum, comm, stream) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, N, ncclFloat32, ncclAvg + 7, comm, stream) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, N, ncclFloat32, ncclSum, comm, (CUstream)8) == ncclUnhandledCudaError);
    still_works();
}

int main(void)
{
    begin();
    comm = join();
    in = floats(N), out = floats(N);
    for (int i = 0; i < N; ++i)
        in[i] = 1;
    are_launched_at_the_outermost_end();
    have_no_order_inside();
    fail_as_a_whole();
    are_dropped_by_a_simulation();
    take_several_streams();
    are_of_one_thread();
    bad_arguments_are_named();
    leave(comm);
    return 0;
}
