/*
 * Prints the results of NCCL calls on a machine without a GPU, which tracing must not change.
 * `call_results none` makes no call that a rank makes.
 */
#include <nccl.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TELL(call) printf("%s = %d\n", #call, (int)(call))

enum { THREADS = 8, TIMES = 200 };

/* Every thread has its own groups. */
static void *groups(void *sum)
{
    for (int i = 0; i < TIMES; ++i) {
        *(int *)sum += (int)ncclGroupStart();
        *(int *)sum += (int)ncclAllReduce(NULL, NULL, 1, ncclFloat32, ncclSum, NULL, NULL);
        *(int *)sum += (int)ncclGroupEnd();
    }
    return NULL;
}

static void threads(void)
{
    pthread_t started[THREADS];
    int sums[THREADS] = {0}, sum = 0;
    for (int i = 0; i < THREADS; ++i)
        pthread_create(&started[i], NULL, groups, &sums[i]);
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(started[i], NULL);
        sum += sums[i];
    }
    printf("threads: %d\n", sum);
}

int main(int argc, char **argv)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    void *memory = NULL;
    int version = 0, status = 0, devices[] = {0};

    memset(&id, 0, sizeof id);
    TELL(ncclGetVersion(&version));
    printf("version %d\n", version);
    TELL(ncclGroupStart());
    TELL(ncclGroupStart());
    TELL(ncclGroupEnd());
    TELL(ncclGroupEnd());
    TELL(ncclGroupEnd()); /* no group is open */
    TELL(ncclGetUniqueId(NULL));
    if (argc > 1 && strcmp(argv[1], "none") == 0)
        return 0;
    TELL(ncclGetUniqueId(&id));
    TELL(ncclAllReduce(NULL, NULL, 1, ncclFloat32, ncclSum, NULL, NULL));
    printf("%s\n", ncclGetLastError(NULL));
    TELL(ncclBcast(NULL, 1, ncclFloat32, 0, NULL, NULL)); /* NCCL calls ncclBroadcast by its public name */
    TELL(ncclSend(NULL, 1, ncclFloat32, 0, NULL, NULL));
    TELL(ncclMemAlloc(&memory, 64));
    TELL(ncclCommDestroy(NULL));
    threads();
    /* Calls that need a GPU. */
    TELL(ncclCommInitRank(&comm, 1, id, 0));
    printf("%s\n", comm == NULL ? "no communicator" : "a communicator");
    TELL(ncclCommInitRankConfig(&comm, 1, id, 0, NULL));
    TELL(ncclCommInitAll(&comm, 1, devices));
    TELL(ncclCommInitRank(&comm, 2, id, 7)); /* rank 7 of 2 */
    fflush(stdout);
    if (fork() == 0) {
        TELL(ncclGroupStart());
        TELL(ncclGroupEnd());
        TELL(ncclAllReduce(NULL, NULL, 1, ncclFloat32, ncclSum, NULL, NULL));
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    printf("child: %d\n", status);
    return 0;
}
