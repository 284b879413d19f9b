/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * layers = ["nccl"]
 *
 * [faulty]
 * code = "DD105"
 * verdict = "wrong"
 * ranks = { root = [2], victims = [0, 1] }
 * [healthy]
 * ///
 * Two ranks are joined by a third, which came later: it reduces as bfloat16 what they take for float16.
 * What they divided before counts for the name of what they grow into.
 */
#include <rank.h>

int main(void)
{
    begin();
    ncclComm_t comm = NULL, apart = NULL, all;
    ncclUniqueId id;
    float *values = floats(64);
    char path[4096], made[4100];
    snprintf(path, sizeof path, "%s/grown", getenv("JOB_DIR"));
    snprintf(made, sizeof made, "%s.new", path);
    if (rank < 2) {
        NCCL(ncclCommInitRank(&comm, 2, meet("two", 0), rank));
        NCCL(ncclCommSplit(comm, rank == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &apart, NULL));
        NCCL(ncclAllReduce(values, values, 64, ncclFloat32, ncclSum, comm, stream));
        synchronize();
    }
    if (rank == 0) {
        NCCL(ncclCommGetUniqueId(comm, &id));
        FILE *file = fopen(made, "w");
        EXPECT(file != NULL && fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
        EXPECT(rename(made, path) == 0);
        NCCL(ncclCommGrow(comm, 3, &id, -1, &all, NULL));
    } else if (rank == 1) {
        NCCL(ncclCommGrow(comm, 3, NULL, -1, &all, NULL));
    } else {
        id = meet("grown", 0);
        NCCL(ncclCommGrow(NULL, 3, &id, 2, &all, NULL));
    }
    for (int step = 1; step <= 6; ++step) {
        ncclDataType_t type = ncclFloat16;
#ifdef FAULTY
        if (rank == 2 && step >= 3)
            type = ncclBfloat16;
#endif
        NCCL(ncclAllReduce(values, values, 64, type, ncclSum, all, stream));
        synchronize();
        sleep_ms(20);
    }
    if (apart != NULL)
        NCCL(ncclCommDestroy(apart));
    if (comm != NULL)
        NCCL(ncclCommDestroy(comm));
    leave(all);
    return 0;
}
