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
 * Rank 0 sends one message more than rank 1 receives, and waits for it in its stream until it
 * loses patience; rank 1 is at something else.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = join();
    float *activations = floats(64);
    int messages = 4;
#ifdef FAULTY
    messages -= rank == 1;
    if (rank == 0)
        give_up_later();
#endif
    for (int i = 0; i < messages; ++i) {
        if (rank == 0)
            NCCL(ncclSend(activations, 64, ncclFloat32, 1, comm, stream));
        else
            NCCL(ncclRecv(activations, 64, ncclFloat32, 0, comm, stream));
        synchronize();
    }
    if (messages < 4)
        be_elsewhere();
    leave(comm);
    return 0;
}
