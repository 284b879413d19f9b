/*
 * /// truth
 * nproc = 2
 * code = "DD113"
 * root = [1]
 * root_confidence = "suspected"
 * hang = true
 * run_options = ["--stall-after", "3"]
 * ///
 * Rank 0's very first message is one that rank 1 does not expect: the call itself does not return, since
 * it connects the two. Rank 1 computes on.
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
        NCCL(ncclSend(activations, 64, ncclFloat32, 1, comm, stream));
    } else {
#ifdef FAULTY
        for (volatile double guess = 1; guess * guess != 2;)
            guess = (guess + 2 / guess) / 2;
#endif
        NCCL(ncclRecv(activations, 64, ncclFloat32, 0, comm, stream));
    }
    leave(comm);
    return 0;
}
