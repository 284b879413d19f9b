/*
 * /// truth
 * nproc = 5
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD107"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [4], victims = [0, 2, 3] }
 * [healthy]
 * ///
 * Ranks leave a communicator, twice, and each time others remain; then all divide the first one, of whose
 * shrinking those that left know nothing. In what is left without rank 1, rank 4 broadcasts from its own
 * rank 3, which is rank 4 itself, where the others broadcast from rank 2, which is rank 3 there.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join(), first = NULL, second = NULL, half;
    float *values = floats(64);
    int without_two[] = {2}, without_one[] = {1}, found = -1;
    if (rank != 2)
        NCCL(ncclCommShrink(comm, without_two, 1, &first, NULL, NCCL_SHRINK_DEFAULT));
    if (rank != 1)
        NCCL(ncclCommShrink(comm, without_one, 1, &second, NULL, NCCL_SHRINK_DEFAULT));
    NCCL(ncclCommSplit(comm, rank % 2, rank, &half, NULL));
    for (int step = 1; step <= 6; ++step) {
        int root = 2;
#ifdef FAULTY
        if (rank == 4 && step == 4)
            root = 3;
#endif
        NCCL(ncclAllReduce(values, values, 64, ncclFloat32, ncclSum, half, stream));
        if (first != NULL)
            NCCL(ncclAllReduce(values, values, 32, ncclFloat32, ncclSum, first, stream));
        if (second != NULL)
            NCCL(ncclBroadcast(values, values, 16, ncclFloat32, root, second, stream));
        synchronize();
    }
    NCCL(ncclCommUserRank(second != NULL ? second : first, &found));
    EXPECT(found == rank - (rank > 1 && second != NULL));
    if (first != NULL)
        NCCL(ncclCommDestroy(first));
    if (second != NULL)
        NCCL(ncclCommDestroy(second));
    NCCL(ncclCommDestroy(half));
    leave(comm);
    return 0;
}
