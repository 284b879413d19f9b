/*
 * /// truth
 * nproc = 2
 * launcher = "doubles"
 * run_options = ["--stall-after", "3"]
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD111"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [0, 1], victims = [] }
 * [healthy]
 * ///
 * Two communicators in one stream: rank 0 uses the one first and rank 1 the other, in a step of all.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t data = join(), model;
    float *gradients = floats(64), *activations = floats(32);
    NCCL(ncclCommSplit(data, 0, rank, &model, NULL));
    for (int step = 1; step <= 6; ++step) {
        int model_first = 0;
#ifdef FAULTY
        model_first = rank == 1 && step == 4;
#endif
        if (model_first)
            NCCL(ncclAllReduce(activations, activations, 32, ncclFloat32, ncclSum, model, stream));
        NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, ncclSum, data, stream));
        if (!model_first)
            NCCL(ncclAllReduce(activations, activations, 32, ncclFloat32, ncclSum, model, stream));
        synchronize();
    }
    NCCL(ncclCommDestroy(model));
    leave(data);
    return 0;
}
