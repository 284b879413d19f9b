/*
 * Programs for benches/nccl/shim.py. With -DLIBRARY: an NCCL whose functions do nothing, so that a call takes only
 * the time of the library before it. Otherwise a program that calls it and prints durations in nanoseconds, one
 * per line: the mean of each of BATCHES batches of CALLS calls, then single calls. With an argument the program
 * also acts as a framework, which records its own call around each NCCL call.
 */
#include <stddef.h>

typedef struct { char internal[128]; } id;

#ifdef LIBRARY

static int made;
int pncclGetVersion(int *version) { *version = 22705; return 0; }
int ncclGetVersion(int *version) { return pncclGetVersion(version); }
int pncclCommInitRank(void **comm, int ranks, id id, int rank) { (void)ranks, (void)id, (void)rank; *comm = &made; return 0; }
int ncclCommInitRank(void **comm, int ranks, id id, int rank) { return pncclCommInitRank(comm, ranks, id, rank); }
int pncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream)
{ (void)in, (void)out, (void)n, (void)type, (void)op, (void)comm, (void)stream; return 0; }
int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream)
{ return pncclAllReduce(in, out, n, type, op, comm, stream); }
int pncclGroupStart(void) { return 0; }
int ncclGroupStart(void) { return 0; }
int pncclGroupEnd(void) { return 0; }
int ncclGroupEnd(void) { return 0; }

#else

#include <ddp_doctor.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

int ncclCommInitRank(void **comm, int ranks, id id, int rank);
int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream);
int ncclGroupStart(void);
int ncclGroupEnd(void);

enum { BATCHES = 101, CALLS = 2000, GROUP = 8, SINGLE = 20000 };

static void *comm;
static char buffer[64];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void call(void)
{
    ncclAllReduce(buffer, buffer, 16, 7, 0, comm, NULL);
}

static void group(void)
{
    ncclGroupStart();
    for (int i = 0; i < GROUP; ++i)
        call();
    ncclGroupEnd();
}

static ddp_doctor_call framework_call;

/* The first call creates the communicator, as in PyTorch. */
static void within_call(void)
{
    uint64_t made = ddp_doctor_issued(&framework_call);
    if (comm == NULL) {
        id unique;
        memset(&unique, 7, sizeof unique);
        ncclCommInitRank(&comm, 1, unique, 0);
    }
    call();
    ddp_doctor_returned(made);
}

static void within_nothing(void)
{
    ddp_doctor_returned(ddp_doctor_issued(&framework_call));
}

static int framework(void)
{
    uint32_t member = 0;
    ddp_doctor_identity identity = {0, 1, 0};
    if (ddp_doctor_open(ddp_doctor_text_of("c10d"), &identity) != DDP_DOCTOR_OK)
        return 0;
    framework_call.op = DDP_DOCTOR_OP_ALL_REDUCE;
    framework_call.group = ddp_doctor_group(ddp_doctor_text_of("world"), ddp_doctor_text_of("world"),
                                            ddp_doctor_text_of("nccl"), 0, &member, 1);
    return 1;
}

static void batches(const char *name, void (*work)(void), int calls)
{
    for (int batch = 0; batch < BATCHES; ++batch) {
        double begin = now();
        for (int i = 0; i < CALLS / calls; ++i)
            work();
        printf("%s %.2f\n", name, (now() - begin) / CALLS);
    }
}

int main(int count, char **arguments)
{
    (void)arguments;
    if (count > 1) {
        if (!framework())
            return 1;
        batches("warm-up", within_call, 1);
        batches("within", within_call, 1);
        batches("alone", within_nothing, 1);
        return 0;
    }
    id unique;
    memset(&unique, 7, sizeof unique);
    if (ncclCommInitRank(&comm, 1, unique, 0) != 0)
        return 1;
    batches("warm-up", call, 1);
    batches("call", call, 1);
    batches("grouped", group, GROUP);
    for (int i = 0; i < SINGLE; ++i) {
        double begin = now();
        call();
        printf("single %.0f\n", now() - begin);
    }
    return 0;
}

#endif
