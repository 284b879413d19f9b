/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * run_options = ["--stall-after", "4"]
 * environment = { DDP_DOCTOR_NCCL_COMPLETION = "1" }
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD116"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [], victims = [0, 1, 2] }
 * [healthy]
 * ///
 * All ranks make the call, and what rank 1 should send never leaves it.
 */
#include <rank.h>

int main(void)
{
#ifdef FAULTY
    setenv("NCCL_DOUBLE_FAULTS", "hang AllReduce 4 on 1", 1);
#endif
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64);
    for (int step = 1; step <= 6; ++step) {
        NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, ncclAvg, comm, stream));
        synchronize();
    }
    leave(comm);
    return 0;
}
