/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * run_options = ["--stall-after", "4"]
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD114"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [0], victims = [1, 2] }
 * [healthy]
 * ///
 * Rank 0 thinks that it needs no communicator of the others, and does not take part in making it.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join(), child = NULL;
    float *weights = floats(64);
    NCCL(ncclAllReduce(weights, weights, 64, ncclFloat32, ncclSum, comm, stream));
    synchronize();
#ifdef FAULTY
    if (rank != 0)
#endif
        NCCL(ncclCommSplit(comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 1, rank, &child, NULL));
    if (child != NULL) {
        NCCL(ncclAllReduce(weights, weights, 64, ncclFloat32, ncclSum, child, stream));
        leave(child);
    }
#ifdef FAULTY
    sleep_ms(60000);
#endif
    leave(comm);
    return 0;
}
