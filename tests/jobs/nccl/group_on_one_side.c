/*
 * /// truth
 * nproc = 2
 * launcher = "doubles"
 * run_options = ["--stall-after", "3"]
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD112"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [0, 1], victims = [] }
 * [healthy]
 * ///
 * Both ranks send and receive; rank 0 groups the two, rank 1 does not. Its send waits for the other
 * to be connected for that alone, which waits in the end of its group.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *mine = floats(64), *theirs = floats(64);
    int is_grouped = 1;
#ifdef FAULTY
    is_grouped = rank == 0;
#endif
    NCCL(ncclAllReduce(mine, mine, 64, ncclFloat32, ncclSum, comm, stream));
    for (int step = 1; step <= 6; ++step) {
        if (is_grouped)
            NCCL(ncclGroupStart());
        NCCL(ncclSend(mine, 64, ncclFloat32, 1 - rank, comm, stream));
        NCCL(ncclRecv(theirs, 64, ncclFloat32, 1 - rank, comm, stream));
        if (is_grouped)
            NCCL(ncclGroupEnd());
        synchronize();
    }
    leave(comm);
    return 0;
}
