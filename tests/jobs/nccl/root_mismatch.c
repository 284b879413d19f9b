/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD107"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [2], victims = [0, 1] }
 * [healthy]
 * ///
 * Rank 2 believes that rank 1 has the weights, which rank 0 broadcasts.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *weights = floats(64);
    for (int step = 1; step <= 6; ++step) {
        int root = 0;
#ifdef FAULTY
        if (rank == 2 && step == 4)
            root = 1;
#endif
        NCCL(ncclBcast(weights, 64, ncclFloat32, root, comm, stream));
        NCCL(ncclAllReduce(weights, weights, 64, ncclFloat32, ncclSum, comm, stream));
        synchronize();
    }
    leave(comm);
    return 0;
}
