/*
 * /// truth
 * nproc = 2
 * code = "DD113"
 * root = [1]
 * root_confidence = "suspected"
 * hang = true
 * run_options = ["--stall-after", "3"]
 * ///
 * Rank 0 sends one message more than rank 1 receives, and waits for it in its stream; rank 1 computes on.
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
#endif
    for (int i = 0; i < messages; ++i) {
        if (rank == 0)
            NCCL(ncclSend(activations, 64, ncclFloat32, 1, comm, stream));
        else
            NCCL(ncclRecv(activations, 64, ncclFloat32, 0, comm, stream));
        synchronize();
    }
    if (messages < 4)
        for (volatile double guess = 1; guess * guess != 2;)
            guess = (guess + 2 / guess) / 2;
    leave(comm);
    return 0;
}
