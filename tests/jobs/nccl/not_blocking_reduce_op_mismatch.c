/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 * quick = ["healthy"]
 * [faulty]
 * code = "DD106"
 * verdict = "wrong"
 * ranks = { root = [0], victims = [1, 2] }
 * [healthy]
 * ///
 * No call waits for another rank: communicators are made, and divided, while the program asks whether they
 * are there yet. In the one that was made last, at whose address there was another one before, rank 0 takes
 * the least of what the others take the most of.
 */
#include <rank.h>

static ncclComm_t comm;

/* What is under way on the communicator is done. */
static void settle(ncclResult_t state)
{
    while (state == ncclInProgress) {
        sleep_ms(1);
        NCCL(ncclCommGetAsyncError(comm, &state));
    }
    NCCL(state);
}

int main(void)
{
    begin();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t before = NULL, part = NULL;
    float *values = floats(64);
    config.blocking = 0;
    config.commName = "all that hurry";
    settle(ncclCommInitRankConfig(&comm, world, meet("not blocking", 0), rank, &config));
    for (int time = 0; time < 2; ++time) {
        /* The order of the ranks is another one each time. */
        settle(ncclCommSplit(comm, 0, time == 0 ? rank : -rank, &part, NULL));
        EXPECT(part != NULL && (before == NULL || part == before));
        before = part;
        for (int step = 1; step <= 6; ++step) {
            ncclRedOp_t op = ncclMax;
            ncclResult_t state;
#ifdef FAULTY
            if (rank == 0 && time == 1 && step >= 3)
                op = ncclMin;
#endif
            state = ncclAllReduce(values, values, 64, ncclFloat32, op, part, stream);
            while (state == ncclInProgress)
                NCCL(ncclCommGetAsyncError(part, &state));
            NCCL(state);
            synchronize();
            sleep_ms(20);
        }
        NCCL(ncclCommAbort(part));
    }
    synchronize();
    NCCL(ncclCommAbort(comm));
    return 0;
}
