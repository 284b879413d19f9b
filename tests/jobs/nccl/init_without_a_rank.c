/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * run_options = ["--stall-after", "4"]
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD301"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [2], victims = [0, 1] }
 * [healthy]
 * ///
 * Rank 2 never gets as far as the initialisation: the others wait for it there.
 */
#include <rank.h>

int main(void)
{
    begin();
#ifdef FAULTY
    if (rank == 2)
        sleep_ms(60000);
#endif
    ncclComm_t comm = join();
    float *weights = floats(64);
    NCCL(ncclBroadcast(weights, weights, 64, ncclFloat32, 0, comm, stream));
    leave(comm);
    return 0;
}
