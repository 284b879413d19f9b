/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD104"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [1], victims = [0, 2] }
 * [healthy]
 * ///
 * Rank 1's last batch is smaller, and with it what it reduces.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *losses = floats(64);
    for (int step = 1; step <= 6; ++step) {
        size_t batch = step == 6 ? 32 : 64;
#ifdef FAULTY
        if (rank == 1 && step == 6)
            batch = 17;
#endif
        NCCL(ncclAllReduce(losses, losses, batch, ncclFloat32, ncclSum, comm, stream));
        synchronize();
    }
    leave(comm);
    return 0;
}
