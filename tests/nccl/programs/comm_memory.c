/*
 * GPU memory held by NCCL, for two ranks. "steps": communicators are created and destroyed. "races": other
 * threads abort them while they are in use.
 */
#include <pthread.h>
#include <rank.h>

enum { ROUNDS = 40 };

static float *values;

static void sum(ncclComm_t comm)
{
    NCCL(ncclAllReduce(values, values, 64, ncclFloat32, ncclSum, comm, stream));
    synchronize();
}

/* MiB: 4 for each communicator, 8 more for its first collective. */
static void steps(ncclComm_t comm)
{
    ncclConfig_t sharing = NCCL_CONFIG_INITIALIZER;
    ncclComm_t own, shared;
    sharing.splitShare = 1;
    sum(comm); /* 12 */
    NCCL(ncclCommSplit(comm, 0, rank, &own, NULL)); /* 16 */
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(values, values, 64, ncclFloat32, ncclSum, own, stream));
    NCCL(ncclGroupEnd()); /* 24 */
    NCCL(ncclCommSplit(comm, 0, rank, &shared, &sharing)); /* 28 */
    sum(shared); /* its memory is counted with that of comm */
    sum(comm); /* 36 */
    NCCL(ncclCommDestroy(own)); /* 24 */
    NCCL(ncclCommDestroy(shared));
    NCCL(ncclCommDestroy(comm)); /* 0 */
}

static void *aborts(void *comm)
{
    struct timespec soon = {0, rand() % 400 * 1000L};
    nanosleep(&soon, NULL);
    NCCL(ncclCommAbort(comm));
    return NULL;
}

static void races(ncclComm_t comm)
{
    for (int round = 0; round < ROUNDS; ++round) {
        ncclComm_t child;
        pthread_t thread;
        NCCL(ncclCommSplit(comm, 0, rank, &child, NULL));
        EXPECT(pthread_create(&thread, NULL, aborts, child) == 0);
        while (ncclAllReduce(values, values, 64, ncclFloat32, ncclSum, child, stream) == ncclSuccess)
            ;
        EXPECT(pthread_join(thread, NULL) == 0);
        synchronize();
    }
    NCCL(ncclCommDestroy(comm));
}

int main(int count, char **arguments)
{
    EXPECT(count == 2);
    begin();
    values = floats(64);
    ncclComm_t comm = join();
    if (strcmp(arguments[1], "races") == 0)
        races(comm);
    else
        steps(comm);
    return 0;
}
