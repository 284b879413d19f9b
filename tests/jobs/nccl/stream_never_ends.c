/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * run_options = ["--stall-after", "4"]
 * environment = { DDP_DOCTOR_NCCL_COMPLETION = "1" }
 * layers = ["nccl"]
 * quick = ["faulty"]
 * [faulty]
 * code = "DD116"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [], victims = [0, 1, 2] }
 * [healthy]
 * ///
 * All ranks make the call. Rank 1's stream has a kernel before it that never ends.
 */
#include <rank.h>

/* Stands for the kernel. */
static void compute(void *how)
{
    volatile int for_ever = how != NULL;
    while (for_ever)
        sleep_ms(100);
}

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64);
    for (int step = 1; step <= 6; ++step) {
        void *how = NULL;
#ifdef FAULTY
        if (rank == 1 && step == 4)
            how = gradients;
#endif
        CU(cuLaunchHostFunc(stream, compute, how));
        NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, ncclAvg, comm, stream));
        synchronize();
    }
    leave(comm);
    return 0;
}
