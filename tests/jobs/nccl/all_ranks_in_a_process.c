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
 * One process makes a communicator of all its devices, and is all ranks of it. Of those nothing is seen,
 * which has to be said. The twin is a rank of its own.
 */
#include <rank.h>

int main(void)
{
    begin();
#ifdef FAULTY
    ncclComm_t comms[2];
    CUstream streams[2];
    float *values[2];
    int devices[2] = {0, 1};
    NCCL(ncclCommInitAll(comms, 2, devices));
    for (int i = 0; i < 2; ++i) {
        CUcontext context;
        CU(cuDevicePrimaryCtxRetain(&context, devices[i]));
        CU(cuCtxSetCurrent(context));
        CU(cuStreamCreate(&streams[i], 0));
        values[i] = floats(8);
    }
    NCCL(ncclGroupStart());
    for (int i = 0; i < 2; ++i)
        NCCL(ncclAllReduce(values[i], values[i], 8, ncclFloat32, ncclSum, comms[i], streams[i]));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < 2; ++i)
        CU(cuStreamSynchronize(streams[i]));
    /* Each waits for the others. */
    NCCL(ncclGroupStart());
    for (int i = 0; i < 2; ++i)
        NCCL(ncclCommDestroy(comms[i]));
    NCCL(ncclGroupEnd());
#else
    ncclComm_t comm = join();
    float *values = floats(8);
    NCCL(ncclAllReduce(values, values, 8, ncclFloat32, ncclSum, comm, stream));
    leave(comm);
#endif
    return 0;
}
