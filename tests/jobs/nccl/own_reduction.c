/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 * quick = ["faulty"]
 * [faulty]
 * code = "DD106"
 * verdict = "wrong"
 * ranks = { root = [2], victims = [0, 1] }
 * [healthy]
 * ///
 * All ranks reduce by a factor of their own, whose reduction has another number on every rank; rank 2
 * forgets its factor once.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64), factor = 1.0f / (float)world;
    ncclRedOp_t scaled;
    NCCL(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    for (int step = 1; step <= 6; ++step) {
        ncclRedOp_t op = scaled;
#ifdef FAULTY
        if (rank == 2 && step == 4)
            op = ncclSum;
#endif
        NCCL(ncclAllReduce(gradients, gradients, 64, ncclFloat32, op, comm, stream));
        synchronize();
        sleep_ms(20);
    }
    NCCL(ncclRedOpDestroy(scaled, comm));
    leave(comm);
    return 0;
}
