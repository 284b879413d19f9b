/* Creation and destruction of communicators. Four ranks. */
#include <rank.h>

static float *value;

/* Checks size and rank of a communicator, and that its ranks meet. */
static void is(ncclComm_t comm, int count, int rank_there)
{
    int found = -1;
    NCCL(ncclCommCount(comm, &found));
    EXPECT(found == count);
    NCCL(ncclCommUserRank(comm, &found));
    EXPECT(found == rank_there);
    NCCL(ncclCommCuDevice(comm, &found));
    EXPECT(found == rank);
    *value = (float)(1 << rank);
    NCCL(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comm, stream));
    synchronize();
}

static void of_a_split(ncclComm_t world_comm)
{
    ncclComm_t child;
    /* Even and odd ranks, in reverse order. */
    NCCL(ncclCommSplit(world_comm, rank % 2, -rank, &child, NULL));
    is(child, 2, rank < 2);
    EXPECT(*value == (rank % 2 ? 10 : 5));
    NCCL(ncclCommDestroy(child));
    NCCL(ncclCommSplit(world_comm, rank == 3 ? NCCL_SPLIT_NOCOLOR : 7, 0, &child, NULL));
    EXPECT((child == NULL) == (rank == 3));
    if (child != NULL) {
        is(child, 3, rank);
        NCCL(ncclCommDestroy(child));
    }
    EXPECT(ncclCommSplit(world_comm, -5, 0, &child, NULL) == ncclInvalidArgument);
}

static void of_what_remains(ncclComm_t world_comm)
{
    ncclComm_t child;
    int excluded[] = {1};
    if (rank == 1) {
        EXPECT(ncclCommShrink(world_comm, excluded, 1, &child, NULL, 0) == ncclInvalidArgument);
        return;
    }
    NCCL(ncclCommShrink(world_comm, excluded, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
    is(child, 3, rank - (rank > 1));
    EXPECT(*value == 13);
    NCCL(ncclCommDestroy(child));
}

/* Ranks 0 and 1 form a communicator; 2 and 3 join it one after the other. */
static void of_what_grows(void)
{
    ncclComm_t comm = NULL, grown;
    ncclUniqueId id;
    if (rank < 2)
        NCCL(ncclCommInitRank(&comm, 2, meet("growing", 0), rank));
    for (int count = 3; count <= 4; ++count) {
        char path[4096], name[16];
        snprintf(name, sizeof name, "grow%d", count);
        snprintf(path, sizeof path, "%s/%s", getenv("JOB_DIR"), name);
        if (rank == 0) {
            NCCL(ncclCommGetUniqueId(comm, &id));
            char made[4100];
            snprintf(made, sizeof made, "%s.n", path);
            FILE *file = fopen(made, "w");
            EXPECT(file != NULL && fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
            EXPECT(rename(made, path) == 0);
            NCCL(ncclCommGrow(comm, count, &id, -1, &grown, NULL));
        } else if (rank < count - 1) {
            NCCL(ncclCommGrow(comm, count, NULL, -1, &grown, NULL));
        } else if (rank == count - 1) {
            id = meet(name, 0);
            NCCL(ncclCommGrow(NULL, count, &id, rank, &grown, NULL));
        } else {
            continue;
        }
        is(grown, count, rank);
        EXPECT(*value == (float)((1 << count) - 1));
        if (comm != NULL)
            NCCL(ncclCommDestroy(comm));
        comm = grown;
    }
    EXPECT(ncclCommGrow(comm, 4, NULL, -1, &grown, NULL) == ncclInvalidArgument);
    EXPECT(ncclCommGrow(NULL, 4, NULL, 0, &grown, NULL) == ncclInvalidArgument);
    NCCL(ncclCommDestroy(comm));
}

static void of_several_ids(void)
{
    ncclComm_t comm;
    ncclUniqueId ids[2] = {meet("first", 0), meet("second", 2)};
    NCCL(ncclCommInitRankScalable(&comm, world, rank, 2, ids, NULL));
    is(comm, 4, rank);
    NCCL(ncclCommFinalize(comm));
    NCCL(ncclCommDestroy(comm));
}

static void without_blocking(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclInProgress;
    ncclUniqueId id = meet("nonblocking", 0);
    ncclComm_t comm;
    char path[4096];
    snprintf(path, sizeof path, "%s/asked", getenv("JOB_DIR"));
    config.blocking = 0;
    /* Rank 3 arrives after rank 0 has seen that the initialization is in progress. */
    while (rank == 3 && access(path, F_OK) != 0)
        sleep_ms(5);
    EXPECT(ncclCommInitRankConfig(&comm, world, id, rank, &config) == ncclInProgress);
    if (rank == 0) {
        NCCL(ncclCommGetAsyncError(comm, &state));
        EXPECT(state == ncclInProgress);
        EXPECT(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comm, stream) == ncclInvalidArgument);
        FILE *file = fopen(path, "w");
        EXPECT(file != NULL && fclose(file) == 0);
    }
    for (state = ncclInProgress; state == ncclInProgress; sleep_ms(1))
        NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT(state == ncclSuccess);
    *value = 1;
    EXPECT(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comm, stream) == ncclInProgress);
    for (state = ncclInProgress; state == ncclInProgress; sleep_ms(1))
        NCCL(ncclCommGetAsyncError(comm, &state));
    synchronize();
    EXPECT(*value == 4);
    EXPECT(ncclCommDestroy(comm) == ncclInProgress);
    while (ncclCommGetAsyncError(comm, &state) == ncclSuccess)
        sleep_ms(1);
}

static void registrations_are_taken(ncclComm_t comm)
{
    void *memory, *handle;
    NCCL(ncclMemAlloc(&memory, 4096));
    NCCL(ncclCommRegister(comm, memory, 4096, &handle));
    NCCL(ncclCommDeregister(comm, handle));
    EXPECT(ncclCommDeregister(comm, handle) == ncclInvalidArgument);
    NCCL(ncclCommWindowRegister(comm, memory, 4096, &handle, 1));
    NCCL(ncclCommWindowDeregister(comm, handle));
    NCCL(ncclMemFree(memory));
}

/* A call that never completes ends with its communicator, whose handle is reused. */
static void aborted(void)
{
    ncclComm_t comm, next;
    NCCL(ncclCommInitRank(&comm, world, meet("aborted", 0), rank));
    if (rank < 2)
        NCCL(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comm, stream));
    sleep_ms(20);
    EXPECT(cuStreamQuery(stream) == (rank < 2 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS));
    NCCL(ncclCommAbort(comm));
    synchronize();
    EXPECT(ncclCommAbort(comm) == ncclInvalidArgument);
    NCCL(ncclCommInitRank(&next, world, meet("next", 3), rank));
    EXPECT(next == comm);
    is(next, 4, rank);
    NCCL(ncclCommDestroy(next));
}

static void bad_requests(void)
{
    ncclUniqueId id = meet("bad", 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    EXPECT(ncclCommInitRank(&comm, world, id, world) == ncclInvalidArgument);
    EXPECT(ncclCommInitRank(&comm, 0, id, 0) == ncclInvalidArgument);
    config.magic = 1;
    EXPECT(ncclCommInitRankConfig(&comm, world, id, rank, &config) == ncclInvalidArgument);
    /* Ranks that disagree on the number of ranks all get an error. */
    EXPECT(ncclCommInitRank(&comm, rank == 2 ? 5 : 4, id, rank) != ncclSuccess);
    EXPECT(comm == NULL);
}

int main(void)
{
    int version;
    begin();
    value = floats(1);
    NCCL(ncclGetVersion(&version));
    EXPECT(version == 22907);
    ncclComm_t comm = join();
    is(comm, 4, rank);
    EXPECT(*value == 15);
    of_a_split(comm);
    of_what_remains(comm);
    of_what_grows();
    of_several_ids();
    without_blocking();
    registrations_are_taken(comm);
    aborted();
    bad_requests();
    leave(comm);
    return 0;
}
