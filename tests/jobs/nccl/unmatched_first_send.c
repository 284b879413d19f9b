/*
 * /// truth
 * nproc = 2
 * launcher = "doubles"
 * run_options = ["--stall-after", "3"]
 * environment = { PATIENCE_MS = "8000" }
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD113"
 * verdict = "hang"
 * root_confidence = "suspected"
 * ranks = { root = [1], victims = [0] }
 * [healthy]
 * ///
 * Rank 0's very first message is one that rank 1 does not expect: the call itself does not return, since
 * it connects the two. Rank 1 is at something else, until rank 0 loses patience.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *activations = floats(64);
    NCCL(ncclAllReduce(activations, activations, 64, ncclFloat32, ncclSum, comm, stream));
    synchronize();
    if (rank == 0) {
#ifdef FAULTY
        give_up_later();
#endif
        NCCL(ncclSend(activations, 64, ncclFloat32, 1, comm, stream));
    } else {
#ifdef FAULTY
        be_elsewhere();
#endif
        NCCL(ncclRecv(activations, 64, ncclFloat32, 0, comm, stream));
    }
    leave(comm);
    return 0;
}
