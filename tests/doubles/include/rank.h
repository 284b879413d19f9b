/*
 * Common start of the ranks of a test program: rank and world size (from the environment, as launchers
 * set it), device and stream, and the exchange of unique ids (through files in the directory JOB_DIR,
 * which `launch` creates).
 */
#ifndef RANK_H
#define RANK_H

#include <cuda.h>
#include <nccl.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int rank, world;
static CUstream stream;

#define FAIL(...)                                                             \
    do {                                                                      \
        fprintf(stderr, "%s:%d: rank %d: ", __FILE__, __LINE__, rank);        \
        fprintf(stderr, __VA_ARGS__);                                         \
        fputc('\n', stderr);                                                  \
        exit(1);                                                              \
    } while (0)
#define EXPECT(is_so)                                                         \
    do {                                                                      \
        if (!(is_so))                                                         \
            FAIL("%s", #is_so);                                               \
    } while (0)
#define CU(call)                                                              \
    do {                                                                      \
        CUresult result_ = (call);                                            \
        if (result_ != CUDA_SUCCESS)                                          \
            FAIL("%s: CUDA error %d", #call, result_);                        \
    } while (0)
#define NCCL(call)                                                            \
    do {                                                                      \
        ncclResult_t result_ = (call);                                        \
        if (result_ != ncclSuccess)                                           \
            FAIL("%s: %s: %s", #call, ncclGetErrorString(result_), ncclGetLastError(NULL)); \
    } while (0)

static inline int number(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL)
        FAIL("%s is not set", name);
    return atoi(value);
}

static inline void sleep_ms(int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static inline void begin(void)
{
    CUcontext context;
    CUdevice device;
    rank = number("RANK");
    world = number("WORLD_SIZE");
    CU(cuInit(0));
    CU(cuDeviceGet(&device, number("LOCAL_RANK")));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuStreamCreate(&stream, 0));
}

/* The unique id of this name, which the root creates. */
static inline ncclUniqueId meet(const char *name, int root)
{
    char path[4096], made[4096];
    ncclUniqueId id;
    snprintf(path, sizeof path, "%s/%s", getenv("JOB_DIR"), name);
    if (rank == root) {
        snprintf(made, sizeof made, "%.4000s.new", path);
        NCCL(ncclGetUniqueId(&id));
        FILE *file = fopen(made, "w");
        if (file == NULL || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 ||
            rename(made, path) != 0)
            FAIL("cannot write %s", path);
        return id;
    }
    for (int tries = 0; tries < 6000; ++tries) {
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            if (fread(&id, sizeof id, 1, file) != 1)
                FAIL("cannot read %s", path);
            fclose(file);
            return id;
        }
        sleep_ms(10);
    }
    FAIL("no %s", path);
}

/* The communicator of all ranks. */
static inline ncclComm_t join(void)
{
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, world, meet("world", 0), rank));
    return comm;
}

/* Device memory, which the host can access as well. */
static inline float *floats(size_t count)
{
    CUdeviceptr address;
    CU(cuMemAlloc_v2(&address, count * sizeof(float)));
    return (float *)(size_t)address;
}

static inline void synchronize(void)
{
    CU(cuStreamSynchronize(stream));
}

/* Time after which a waiting rank gives up, in place of a launcher's timeout. */
static inline int patience_ms(void)
{
    const char *value = getenv("PATIENCE_MS");
    return value != NULL ? atoi(value) : 12000;
}

static inline void give_up(int number)
{
    (void)number;
    _exit(1);
}

/* Starts the timeout of this rank. */
static inline void give_up_later(void)
{
    struct itimerval time = {{0, 0}, {patience_ms() / 1000, patience_ms() % 1000 * 1000L}};
    signal(SIGALRM, give_up);
    setitimer(ITIMER_REAL, &time, NULL);
}

/* Stays outside any call for longer than the other ranks wait. */
static inline void be_elsewhere(void)
{
    sleep_ms(patience_ms() + 4000);
    _exit(1);
}

static inline void leave(ncclComm_t comm)
{
    synchronize();
    NCCL(ncclCommDestroy(comm));
}

#endif
