/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD103"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [1], victims = [0, 2] }
 * [healthy]
 * ///
 * The ranks meet by two ids, one of which is rank 2's; the last shall be the first. Rank 1, which is rank 1
 * there, too, scatters what the others gather.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm;
    ncclUniqueId ids[2] = {meet("first", 0), meet("second", 2)};
    float *values = floats(64), *gathered = floats(64 * 3), *exchanged = floats(64 * 3);
    NCCL(ncclCommInitRankScalable(&comm, world, world - 1 - rank, 2, ids, NULL));
    for (int step = 1; step <= 6; ++step) {
#ifdef FAULTY
        if (rank == 1 && step == 4)
            NCCL(ncclScatter(gathered, values, 64, ncclFloat32, 0, comm, stream));
        else
#endif
            NCCL(ncclGather(values, gathered, 64, ncclFloat32, 0, comm, stream));
        NCCL(ncclAlltoAll(gathered, exchanged, 64, ncclFloat32, comm, stream));
        synchronize();
    }
    leave(comm);
    return 0;
}
