/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * environment = { DDP_DOCTOR_GPU_MEMORY = "1" }
 * layers = ["nccl"]
 * quick = ["faulty"]
 * [faulty]
 * why = "NCCL itself held 12.0 MiB of it."
 * code = "DD501"
 * verdict = "crash"
 * ranks = { root = [1], victims = [0, 2] }
 * [healthy]
 * ///
 * Rank 1 keeps the activations of every step, until there is no memory for the next, and ends with that
 * error. The others wait for it, until they lose patience.
 */
#include <rank.h>

enum { ACTIVATIONS = 48 << 20 }; /* floats: 192 MiB of the device's 1 GiB */

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64);
    for (int step = 1; step <= 8; ++step) {
        float *activations = floats(ACTIVATIONS);
        int is_kept = 0;
        sleep_ms(400); /* computes */
#ifdef FAULTY
        is_kept = rank == 1;
        give_up_later();
#endif
        NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, ncclAvg, comm, stream));
        synchronize();
        if (!is_kept)
            CU(cuMemFree_v2((CUdeviceptr)(size_t)activations));
    }
    leave(comm);
    return 0;
}
