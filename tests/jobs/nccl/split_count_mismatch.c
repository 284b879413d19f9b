/*
 * /// truth
 * nproc = 4
 * launcher = "doubles"
 * environment = { PATIENCE_MS = "8000" }
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD104"
 * verdict = "hang"
 * root_confidence = "suspected"
 * hang = true
 * ranks = { root = [1, 3], victims = [] }
 * [healthy]
 * ///
 * Ranks 3 and 1 are one half of the job, in that order, by their keys; rank 1 reduces fewer elements
 * there than its peer. That there are two of them, nobody can say which is wrong. The other half goes on.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join(), half;
    float *values = floats(64);
    int found = -1;
    NCCL(ncclCommSplit(comm, rank % 2, -rank, &half, NULL));
    NCCL(ncclCommUserRank(half, &found));
    EXPECT(found == (rank < 2));
    for (int step = 1; step <= 6; ++step) {
        size_t count = 64;
#ifdef FAULTY
        if (rank == 1 && step == 4)
            count = 32;
#endif
        NCCL(ncclAllReduce(values, values, count, ncclFloat32, ncclSum, half, stream));
        synchronize();
    }
    NCCL(ncclCommDestroy(half));
    leave(comm);
    return 0;
}
