/* NVML that answers at once, for measuring what its caller costs. Its GPUs, as many as NVML_GPUS says, are busy and have
 * 18 NVLinks. The tests have one that can be scripted (tests/doubles/nvml). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned int uint;
typedef unsigned long long ull;

enum { SUCCESS = 0, UNSUPPORTED = 3, TIMEOUT = 10, MAX_GPUS = 16, LINKS = 18 };

static char gpus[MAX_GPUS];

#define ANSWERS(name, value)                                                                                           \
    int name(void *gpu, uint *out) {                                                                                   \
        (void)gpu;                                                                                                     \
        *out = value;                                                                                                  \
        return SUCCESS;                                                                                                \
    }
#define ANSWERS_ONE(name, value)                                                                                       \
    int name(void *gpu, int of, uint *out) {                                                                           \
        (void)gpu;                                                                                                     \
        (void)of;                                                                                                      \
        *out = value;                                                                                                  \
        return SUCCESS;                                                                                                \
    }

ANSWERS(nvmlDeviceGetPowerUsage, 500000)
ANSWERS(nvmlDeviceGetEnforcedPowerLimit, 700000)
ANSWERS(nvmlDeviceGetCurrPcieLinkGeneration, 5)
ANSWERS(nvmlDeviceGetMaxPcieLinkGeneration, 5)
ANSWERS(nvmlDeviceGetCurrPcieLinkWidth, 16)
ANSWERS(nvmlDeviceGetMaxPcieLinkWidth, 16)
ANSWERS(nvmlDeviceGetPcieReplayCounter, 0)
ANSWERS_ONE(nvmlDeviceGetClockInfo, 1980)
ANSWERS_ONE(nvmlDeviceGetMaxClockInfo, 1980)
ANSWERS_ONE(nvmlDeviceGetTemperature, 60)

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(uint *count) {
    const char *given = getenv("NVML_GPUS");
    *count = given ? (uint)atoi(given) : 0;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, void **gpu) {
    *gpu = &gpus[index % MAX_GPUS];
    return SUCCESS;
}

int nvmlDeviceGetName(void *gpu, char *out, uint size) {
    (void)gpu;
    snprintf(out, size, "NVIDIA H100");
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *gpu, char *out, uint size) {
    snprintf(out, size, "GPU-%d", (int)((char *)gpu - gpus));
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *gpu, uint out[2]) {
    (void)gpu;
    out[0] = 100;
    out[1] = 40;
    return SUCCESS;
}

struct memory {
    uint version;
    ull total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory *out) {
    (void)gpu;
    out->total = 80ULL << 30;
    out->free = out->used = out->total / 2;
    out->reserved = 0;
    return SUCCESS;
}

struct process {
    uint pid;
    ull memory;
    uint gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, uint *count, struct process *out) {
    (void)gpu;
    if (*count == 0 || !out) {
        *count = 1;
        return 7; /* too small */
    }
    *count = 1;
    *out = (struct process){.pid = 4711, .memory = 1 << 30, .gpu_instance = ~0U, .compute_instance = ~0U};
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, ull *out) {
    (void)gpu;
    *out = 0;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int counter, ull *out) {
    (void)gpu;
    (void)kind;
    (void)counter;
    *out = 0;
    return SUCCESS;
}

struct field {
    uint id, scope;
    long long at, latency;
    int type, status;
    ull value;
};

int nvmlDeviceGetFieldValues(void *gpu, int count, struct field *fields) {
    (void)gpu;
    for (int i = 0; i < count; i++) {
        fields[i].status = SUCCESS;
        fields[i].type = 3; /* unsigned long long */
        fields[i].value = 0;
    }
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *gpu, uint link, int *out) {
    (void)gpu;
    *out = 1;
    return link < LINKS ? SUCCESS : UNSUPPORTED;
}

int nvmlDeviceGetSupportedEventTypes(void *gpu, ull *out) {
    (void)gpu;
    *out = 8; /* Xid */
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) {
    *set = gpus;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *gpu, ull types, void *set) {
    (void)gpu;
    (void)types;
    (void)set;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, void *out, uint timeout_ms) {
    (void)set;
    (void)out;
    nanosleep(&(struct timespec){.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L}, NULL);
    return TIMEOUT;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    return SUCCESS;
}
