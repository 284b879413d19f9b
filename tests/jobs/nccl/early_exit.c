/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD102"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [1], victims = [0, 2] }
 * [healthy]
 * ///
 * Rank 1 has fewer batches, and ends without a word, its communicator undestroyed.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64);
    int steps = 6;
#ifdef FAULTY
    if (rank == 1)
        steps = 4;
#endif
    for (int step = 1; step <= steps; ++step) {
        NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, ncclAvg, comm, stream));
        synchronize();
        sleep_ms(20);
    }
    if (steps < 6)
        return 0;
    leave(comm);
    return 0;
}
