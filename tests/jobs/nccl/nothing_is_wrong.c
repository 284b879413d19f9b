/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [scenario.plain.healthy]
 *
 * [scenario.completion]
 * environment = { DDP_DOCTOR_NCCL_COMPLETION = "1" }
 * healthy = {}
 * ///
 * Nothing is wrong with any of this: calls of one group in another order on every rank, groups on some
 * ranks only, a group that is only simulated, calls of nothing, a reduction by a number that differs,
 * messages to oneself, two communicators in two streams in opposite order, work captured and replayed.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join(), other;
    float *large = floats(64), *small = floats(8), factor = 0.5f;
    CUstream second;
    CUgraph graph;
    CUgraphExec executable;
    ncclRedOp_t scaled;
    CU(cuStreamCreate(&second, 0));
    NCCL(ncclCommSplit(comm, 0, rank, &other, NULL));
    NCCL(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    for (int step = 1; step <= 6; ++step) {
        NCCL(ncclGroupStart());
        if (rank == 0)
            NCCL(ncclAllReduce(small, small, 8, ncclFloat32, ncclMax, comm, stream));
        NCCL(ncclAllReduce(large, large, 64, ncclFloat32, scaled, comm, stream));
        if (rank != 0)
            NCCL(ncclAllReduce(small, small, 8, ncclFloat32, ncclMax, comm, stream));
        NCCL(ncclGroupEnd());
        if (rank == 1)
            NCCL(ncclGroupStart());
        NCCL(ncclBcast(small, 8, ncclFloat32, 2, comm, stream));
        if (rank == 1)
            NCCL(ncclGroupEnd());
        if (rank == 2) {
            NCCL(ncclGroupStart());
            NCCL(ncclReduce(small, small, 8, ncclFloat32, ncclMin, 1, comm, stream));
            NCCL(ncclGroupSimulateEnd(NULL));
            NCCL(ncclAllGather(small, small, 0, ncclFloat32, comm, stream));
        }
        NCCL(ncclGroupStart());
        NCCL(ncclSend(small, 8, ncclFloat32, rank, comm, stream));
        NCCL(ncclRecv(large, 8, ncclFloat32, rank, comm, stream));
        NCCL(ncclGroupEnd());
        if (rank == 0)
            NCCL(ncclAllReduce(large, large, 4, ncclFloat32, ncclSum, other, second));
        NCCL(ncclAllReduce(small, small, 4, ncclFloat32, ncclSum, comm, stream));
        if (rank != 0)
            NCCL(ncclAllReduce(large, large, 4, ncclFloat32, ncclSum, other, second));
        synchronize();
        CU(cuStreamSynchronize(second));
    }
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    NCCL(ncclAllReduce(small, small, 8, ncclFloat32, ncclSum, comm, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < 3; ++i)
        CU(cuGraphLaunch(executable, stream));
    synchronize();
    NCCL(ncclRedOpDestroy(scaled, comm));
    NCCL(ncclCommDestroy(other));
    leave(comm);
    return 0;
}
