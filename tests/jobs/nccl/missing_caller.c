/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * run_options = ["--stall-after", "4"]
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD101"
 * or_code = "DD204"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [1], victims = [0, 2] }
 * [healthy]
 * ///
 * Rank 1 waits for a signal that nothing sends, while the others wait for it.
 */
#include <rank.h>
#include <unistd.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64);
    for (int step = 1; step <= 6; ++step) {
#ifdef FAULTY
        if (rank == 1 && step == 4)
            pause();
#endif
        NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, ncclAvg, comm, stream));
        synchronize();
    }
    leave(comm);
    return 0;
}
