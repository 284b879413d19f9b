/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 * quick = ["faulty", "healthy"]
 * [faulty]
 * code = "DD103"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [2], victims = [0, 1] }
 * [healthy]
 * ///
 * Rank 2 gathers where the others reduce.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64), *gathered = floats(64 * world);
    for (int step = 1; step <= 6; ++step) {
#ifdef FAULTY
        if (rank == 2 && step == 4)
            NCCL(ncclAllGather(gradients, gathered, 64, ncclFloat32, comm, stream));
        else
#endif
            NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, ncclAvg, comm, stream));
        synchronize();
        NCCL(ncclAllGather(gradients, gathered, 64, ncclFloat32, comm, stream));
        synchronize();
    }
    leave(comm);
    return 0;
}
