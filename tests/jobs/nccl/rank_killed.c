/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 * quick = ["faulty"]
 * [faulty]
 * code = "DD201"
 * verdict = "crash"
 * ranks = { root = [1], victims = [0, 2] }
 * [healthy]
 * ///
 * Rank 1 is killed; the others wait for it in their streams, and are told nothing by NCCL,
 * until they lose patience.
 */
#include <rank.h>

#include <signal.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64);
#ifdef FAULTY
    give_up_later();
#endif
    for (int step = 1; step <= 6; ++step) {
#ifdef FAULTY
        if (rank == 1 && step == 4)
            raise(SIGKILL);
#endif
        NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, ncclAvg, comm, stream));
        synchronize();
    }
    leave(comm);
    return 0;
}
