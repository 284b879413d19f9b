/*
 * /// truth
 * nproc = 1
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD901"
 * verdict = "insufficient"
 * ranks = { root = [0], victims = [] }
 * [healthy]
 * ///
 * One process is two ranks of a communicator, with a device for each. One of them is seen, the other is
 * not, which has to be said. The twin is one rank.
 */
#include <rank.h>

int main(void)
{
    begin();
    int ranks = 1;
#ifdef FAULTY
    ranks = 2;
#endif
    ncclComm_t comms[2];
    CUstream streams[2];
    float *values[2];
    ncclUniqueId id = meet("several", 0);
    NCCL(ncclGroupStart());
    for (int i = 0; i < ranks; ++i) {
        CUcontext context;
        CU(cuDevicePrimaryCtxRetain(&context, i));
        CU(cuCtxSetCurrent(context));
        CU(cuStreamCreate(&streams[i], 0));
        values[i] = floats(8);
        NCCL(ncclCommInitRank(&comms[i], ranks, id, i));
    }
    NCCL(ncclGroupEnd());
    for (int step = 0; step < 3; ++step) {
        NCCL(ncclGroupStart());
        for (int i = 0; i < ranks; ++i)
            NCCL(ncclAllReduce(values[i], values[i], 8, ncclFloat32, ncclSum, comms[i], streams[i]));
        NCCL(ncclGroupEnd());
        for (int i = 0; i < ranks; ++i)
            CU(cuStreamSynchronize(streams[i]));
    }
    /* Each waits for the others. */
    NCCL(ncclGroupStart());
    for (int i = 0; i < ranks; ++i)
        NCCL(ncclCommDestroy(comms[i]));
    NCCL(ncclGroupEnd());
    return 0;
}
