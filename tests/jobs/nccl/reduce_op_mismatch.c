/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD106"
 * verdict = "wrong"
 * ranks = { root = [1], victims = [0, 2] }
 * [healthy]
 * ///
 * Rank 1 sums what the others average: every rank gets another result, and the job ends as if nothing
 * were amiss.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64);
    for (int step = 1; step <= 6; ++step) {
        ncclRedOp_t op = ncclAvg;
#ifdef FAULTY
        if (rank == 1 && step >= 3)
            op = ncclSum;
#endif
        NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, op, comm, stream));
        synchronize();
        sleep_ms(20);
    }
    leave(comm);
    return 0;
}
