/* libnvidia-ml.so.1 for tests on machines without a GPU.
 *
 * The file that NVML_DOUBLE names states the GPUs, in lines
 *
 *     GPU KEY VALUE
 *
 * such as "0 busy 100". It is read again at every call, so that a test changes what a GPU reports by appending lines:
 * the last one with a key counts. A value without a line is not supported. "0 lost 1": the GPU has fallen off the bus.
 * Each line "0 xid 79" is one event, for the sets that were registered before the line was there. Once a process in a
 * line "0 process PID BYTES" was reported twice, there is a file with the name of that file, a dot and PID: all that was
 * read together with its first report was read before. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned int uint;
typedef unsigned long long ull;

enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15 };
enum { MAX_GPUS = 16, LINE = 256 };

static const ull XID = 8;

/* A handle is the address of the GPU's entry here. */
static char gpus[MAX_GPUS];

struct set {
    char registered[MAX_GPUS];
    int delivered[MAX_GPUS];
};

static int number(const void *gpu) { return (int)((const char *)gpu - gpus); }

/* Length of the file when the utilization of a GPU was read, which begins a sample of it; 0: it was not read. Its links
 * are read as they were then: what a test appends meanwhile is part of the next sample as a whole. */
static long sampled[MAX_GPUS];

static void begin_sample(int gpu) {
    const char *path = getenv("NVML_DOUBLE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file && fseek(file, 0, SEEK_END) == 0)
        sampled[gpu] = ftell(file);
    if (file)
        fclose(file);
}

/* Reads the lines of a GPU with this key. Returns how many there are; `value` becomes that of the `nth`, or of the last
 * one if `nth` is 0. */
static int find(int gpu, const char *key, int nth, char value[LINE]) {
    const char *path = getenv("NVML_DOUBLE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE], name[LINE], text[LINE];
    int count = 0, of;
    long end = strncmp(key, "link", 4) == 0 ? sampled[gpu] : 0;
    while (file && fgets(line, sizeof line, file)) {
        if (end && ftell(file) > end)
            break;
        if (!strchr(line, '\n') || sscanf(line, "%d %255s %255[^\n]", &of, name, text) != 3)
            continue; /* It may be being written. */
        if (of != gpu || strcmp(name, key) != 0)
            continue;
        count++;
        if (nth == 0 || nth == count)
            memcpy(value, text, LINE);
    }
    if (file)
        fclose(file);
    return count;
}

static int value(const void *gpu, const char *key, ull *out) {
    char text[LINE];
    if (find(number(gpu), "lost", 0, text) && atoi(text))
        return LOST;
    if (!find(number(gpu), key, 0, text))
        return UNSUPPORTED;
    *out = strtoull(text, NULL, 0);
    return SUCCESS;
}

static int small(const void *gpu, const char *key, uint *out) {
    ull wide = 0;
    int status = value(gpu, key, &wide);
    if (status == SUCCESS)
        *out = (uint)wide;
    return status;
}

static int text(const void *gpu, const char *key, char *out, uint size) {
    char found[LINE];
    if (!find(number(gpu), key, 0, found))
        return UNSUPPORTED;
    snprintf(out, size, "%s", found);
    return SUCCESS;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *out, uint size) {
    snprintf(out, size, "580.00");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(uint *count) {
    char uuid[LINE];
    *count = 0;
    while (*count < MAX_GPUS && find((int)*count, "uuid", 0, uuid))
        ++*count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, void **gpu) {
    if (index >= MAX_GPUS)
        return INVALID;
    *gpu = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetName(void *gpu, char *out, uint size) { return text(gpu, "name", out, size); }
int nvmlDeviceGetUUID(void *gpu, char *out, uint size) {
    char lost[LINE];
    if (find(number(gpu), "lost", 0, lost) && atoi(lost))
        return LOST;
    return text(gpu, "uuid", out, size);
}

struct pci {
    char legacy[16];
    uint domain, bus, device, id, subsystem;
    char name[32];
};

int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *out) {
    char found[LINE];
    memset(out, 0, sizeof *out);
    if (!find(number(gpu), "pci", 0, found))
        return UNSUPPORTED;
    return sscanf(found, "%x:%x:%x", &out->domain, &out->bus, &out->device) == 3 ? SUCCESS : INVALID;
}

int nvmlDeviceGetUtilizationRates(void *gpu, uint out[2]) {
    begin_sample(number(gpu));
    int status = small(gpu, "busy", &out[0]);
    return status == SUCCESS ? small(gpu, "memory-busy", &out[1]) : status;
}

struct memory {
    uint version;
    ull total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory *out) {
    int status = value(gpu, "total", &out->total);
    if (status == SUCCESS)
        status = value(gpu, "free", &out->free);
    out->reserved = 0;
    out->used = out->total - out->free;
    return status;
}

struct process {
    uint pid;
    ull memory;
    uint gpu_instance, compute_instance;
};

/* Whether a process was reported before; this report counts. */
static int is_reported(uint pid) {
    static uint reported[MAX_GPUS];
    for (int i = 0; i < MAX_GPUS; i++) {
        if (reported[i] == pid)
            return 1;
        if (reported[i] == 0) {
            reported[i] = pid;
            return 0;
        }
    }
    return 1;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, uint *count, struct process *out) {
    char found[LINE];
    uint all = (uint)find(number(gpu), "process", 0, found), room = *count;
    *count = all;
    if (all > room || (all > 0 && !out))
        return TOO_SMALL;
    for (uint i = 0; i < all; i++) {
        find(number(gpu), "process", (int)i + 1, found);
        out[i].gpu_instance = out[i].compute_instance = 0xFFFFFFFF;
        if (sscanf(found, "%u %llu", &out[i].pid, &out[i].memory) != 2)
            return INVALID;
        if (!is_reported(out[i].pid))
            continue;
        snprintf(found, sizeof found, "%s.%u", getenv("NVML_DOUBLE"), out[i].pid);
        FILE *reported = fopen(found, "w");
        if (reported)
            fclose(reported);
    }
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *gpu, uint *out) { return small(gpu, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, uint *out) { return small(gpu, "power-limit", out); }
int nvmlDeviceGetClockInfo(void *gpu, int clock, uint *out) {
    return clock == 1 ? small(gpu, "clock", out) : UNSUPPORTED;
}
int nvmlDeviceGetMaxClockInfo(void *gpu, int clock, uint *out) {
    return clock == 1 ? small(gpu, "max-clock", out) : UNSUPPORTED;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, ull *out) {
    return value(gpu, "throttle", out);
}
int nvmlDeviceGetTemperature(void *gpu, int sensor, uint *out) {
    return sensor == 0 ? small(gpu, "celsius", out) : UNSUPPORTED;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void *gpu, uint *out) { return small(gpu, "generation", out); }
int nvmlDeviceGetMaxPcieLinkGeneration(void *gpu, uint *out) { return small(gpu, "max-generation", out); }
int nvmlDeviceGetCurrPcieLinkWidth(void *gpu, uint *out) { return small(gpu, "width", out); }
int nvmlDeviceGetMaxPcieLinkWidth(void *gpu, uint *out) { return small(gpu, "max-width", out); }
int nvmlDeviceGetPcieReplayCounter(void *gpu, uint *out) { return small(gpu, "replays", out); }

int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int counter, ull *out) {
    return kind == 1 && counter == 0 ? value(gpu, "uncorrected", out) : UNSUPPORTED;
}

struct field {
    uint id, scope;
    long long at, latency;
    int type, status;
    ull value;
};

int nvmlDeviceGetFieldValues(void *gpu, int count, struct field *fields) {
    static const struct {
        uint id;
        const char *key;
    } KEYS[] = {
        {38, "link-flit-errors"}, {45, "link-data-errors"}, {52, "link-replays"}, {59, "link-recoveries"},
        {143, "remapped"},        {144, "remap-pending"},   {145, "remap-failed"},
    };
    for (int i = 0; i < count; i++) {
        fields[i].status = UNSUPPORTED;
        fields[i].type = 3; /* unsigned long long */
        for (size_t key = 0; key < sizeof KEYS / sizeof *KEYS; key++)
            if (fields[i].id == KEYS[key].id)
                fields[i].status = value(gpu, KEYS[key].key, &fields[i].value);
    }
    return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(void *gpu, int *out) {
    uint mode = 0;
    int status = small(gpu, "persistence", &mode);
    *out = (int)mode;
    return status;
}

int nvmlDeviceGetMigMode(void *gpu, uint *current, uint *pending) {
    int status = small(gpu, "mig", current);
    *pending = *current;
    return status;
}

int nvmlDeviceGetApplicationsClock(void *gpu, int clock, uint *out) {
    return clock == 0 ? small(gpu, "set-clock", out) : UNSUPPORTED;
}

int nvmlDeviceGetDefaultApplicationsClock(void *gpu, int clock, uint *out) {
    return clock == 0 ? small(gpu, "default-clock", out) : UNSUPPORTED;
}

/* "0 link3 1" */
int nvmlDeviceGetNvLinkState(void *gpu, uint link, int *out) {
    char key[LINE];
    uint up = 0;
    snprintf(key, sizeof key, "link%u", link);
    int status = small(gpu, key, &up);
    *out = (int)up;
    return status;
}

int nvmlDeviceGetSupportedEventTypes(void *gpu, ull *out) {
    (void)gpu;
    *out = XID;
    return SUCCESS;
}

int nvmlEventSetCreate(struct set **out) {
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *gpu, ull types, struct set *set) {
    char found[LINE];
    if (types != XID)
        return UNSUPPORTED;
    set->registered[number(gpu)] = 1;
    set->delivered[number(gpu)] = find(number(gpu), "xid", 0, found);
    return SUCCESS;
}

struct event {
    void *gpu;
    ull type, data;
    uint gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(struct set *set, struct event *out, uint timeout_ms) {
    for (uint waited = 0;; waited += 10) {
        for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
            char found[LINE];
            if (!set->registered[gpu])
                continue;
            int next = set->delivered[gpu] + 1;
            if (find(gpu, "xid", next, found) < next)
                continue;
            set->delivered[gpu] = next;
            memset(out, 0, sizeof *out);
            out->gpu = &gpus[gpu];
            out->type = XID;
            out->data = strtoull(found, NULL, 10);
            return SUCCESS;
        }
        if (waited >= timeout_ms)
            return TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

int nvmlEventSetFree(struct set *set) {
    free(set);
    return SUCCESS;
}
