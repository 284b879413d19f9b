/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD105"
 * verdict = "wrong"
 * ranks = { root = [0], victims = [1, 2] }
 * [healthy]
 * ///
 * Rank 0 reduces as bfloat16 what the others take for float16: as many bytes, and wrong results. The job
 * ends as if nothing were amiss.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *gradients = floats(64);
    for (int step = 1; step <= 6; ++step) {
        ncclDataType_t type = ncclFloat16;
#ifdef FAULTY
        if (rank == 0 && step >= 3)
            type = ncclBfloat16;
#endif
        NCCL(ncclAllReduce(gradients, gradients, 128, type, ncclSum, comm, stream));
        synchronize();
        sleep_ms(20);
    }
    leave(comm);
    return 0;
}
