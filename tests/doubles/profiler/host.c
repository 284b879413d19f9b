/*
 * Drives a profiler plugin as NCCL does, without NCCL:
 *
 *   profiler_host NEWEST PLUGIN WORD…
 *
 * Takes the newest version of the interface up to NEWEST (4 to 7) that the plugin exports, initializes it
 * for a communicator of RANK and WORLD_SIZE, and sends the events of these calls:
 *
 *   all_reduce  broadcast  reduce  all_gather  reduce_scatter     a collective of 64 floats; root 0
 *   send:PEER  recv:PEER                                          a message
 *   [  ]                                                          begin and end of a group
 *   ce_all_gather                                                 a collective by copy engine (6, 7)
 *   foreign                                                       a proxy's work for another process
 *   comm:NAME                                                     another communicator, from here on
 *   hang                                                          the next call's kernel never ends, nor does the host
 *   stand                                                         … nor do its transfers, from their second step on
 *   slow:MS                                                       the next call's transfers stall for this long
 *   sleep:MS                                                      sleeps
 *   @R:WORD                                                       WORD, on rank R only
 *
 * It makes full use of NCCL's freedom: descriptors end at an unmapped page and are unmapped after the call,
 * with garbage in fields that a version lacks; names are unmapped with the communicator; calls come from
 * three threads; the plugin is closed with the last communicator. It sends the events that the plugin's mask
 * requests, and their ancestors. At the end it prints counts.
 */
#define _GNU_SOURCE
#include "profiler.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 64, CHANNELS = 2, MAX_COMMS = 8, MAX_TASKS = 64, PAGE = 4096 };

struct comm {
    void *context;
    uint64_t hash;
    uint64_t seq[8]; /* by function, which NCCL counts separately */
    char *names;     /* a page of strings, unmapped with the communicator */
    size_t used;
};

/* A call, from the program's side until its kernel has ended. */
struct task {
    struct comm *comm;
    const char *func;
    int function, is_p2p, is_ce, peer;
    uint64_t seq;
    void *api, *event, *group;
};

static plugin *plugged;
static int version, mask, rank, world;
static struct comm comms[MAX_COMMS], *comm;
static int comm_count;
static struct task tasks[MAX_TASKS];
static int task_count, depth;
static void *group_api;
static int hangs, stands, slow_ms;
static unsigned started, taken, stopped, states;

/* --- Calls of the plugin ---------------------------------------------------------------------- */

#define FAIL(...) (fprintf(stderr, "profiler_host: " __VA_ARGS__), fputc('\n', stderr), exit(1))

static void say(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    va_list values;
    (void)flags;
    if (level > 3) /* as with NCCL_DEBUG=INFO */
        return;
    va_start(values, format);
    fprintf(stderr, "plugin: %s:%d ", file, line);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
}

static const size_t sizes[] = {[4] = sizeof(descriptor_4), [5] = 112, [6] = 112, [7] = sizeof(descriptor_7)};

/* Whether this kind of event, or one of its descendants, is requested. */
static int is_wanted(int kind)
{
    int of_call = PROXY_OP | PROXY_STEP | NET_PLUGIN | KERNEL_CH | KERNEL_PHASE;
    int of_work = of_call | (version < 5 ? 0 : KERNEL_LAUNCH);
    switch (kind) {
    case GROUP_API: return version >= 5 && (mask & (GROUP_API | COLL_API | P2P_API | COLL | P2P | CE_COLL | of_work));
    case COLL_API: return version >= 5 && (mask & (COLL_API | COLL | CE_COLL | of_call));
    case P2P_API: return version >= 5 && (mask & (P2P_API | P2P | of_call));
    case GROUP: return mask & (GROUP | COLL | P2P | of_call);
    case COLL: return mask & (COLL | of_call);
    case P2P: return mask & (P2P | of_call);
    case CE_COLL: return version >= 6 && (mask & CE_COLL);
    case KERNEL_LAUNCH: return version >= 5 && (mask & KERNEL_LAUNCH);
    case PROXY_OP: return mask & (PROXY_OP | PROXY_STEP | NET_PLUGIN);
    case PROXY_STEP: return mask & (PROXY_STEP | NET_PLUGIN);
    case KERNEL_CH: return mask & (KERNEL_CH | KERNEL_PHASE);
    case KERNEL_PHASE: return version >= 7 && (mask & KERNEL_PHASE);
    default: return mask & kind;
    }
}

/* A descriptor of version 7, filled with garbage for fields that a version leaves uninitialized. */
static descriptor_7 descriptor(int kind, void *parent)
{
    descriptor_7 made;
    memset(&made, 0xaa, sizeof made);
    made.type = (uint64_t)kind;
    made.parent = parent;
    made.rank = rank;
    return made;
}

/* The same in version 4. */
static descriptor_4 older(const descriptor_7 *it)
{
    descriptor_4 made;
    memset(&made, 0xaa, sizeof made);
    /* After the header, common fields have the same offsets; the groups were added later. */
    memcpy((char *)&made + 8, (const char *)it + 8, sizeof made - 8);
    made.type = (uint8_t)it->type;
    return made;
}

static void *start(struct comm *of, const descriptor_7 *it)
{
    void *handle = NULL;
    if (!is_wanted((int)it->type))
        return NULL;
    /* A read beyond the descriptor, or after the call, faults. */
    char *place = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED || mprotect(place + PAGE, PAGE, PROT_NONE) != 0)
        FAIL("no memory");
    void *at = place + PAGE - sizes[version];
    descriptor_4 old = older(it);
    memcpy(at, version < 5 ? (const void *)&old : (const void *)it, sizes[version]);
    __atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
    if (plugged->start(of->context, &handle, at) != 0)
        handle = NULL;
    munmap(place, 2 * PAGE);
    if (handle != NULL)
        __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    return handle;
}

static void stop(void *handle)
{
    if (handle == NULL)
        return;
    __atomic_fetch_add(&stopped, 1, __ATOMIC_RELAXED);
    plugged->stop(handle);
}

static void record(void *handle, int state, const state_args *args)
{
    state_args given;
    if (handle == NULL)
        return;
    if (args != NULL)
        given = *args;
    __atomic_fetch_add(&states, 1, __ATOMIC_RELAXED);
    plugged->record(handle, state, args != NULL ? &given : NULL);
}

/* A name that is unmapped with the communicator. */
static const char *name(struct comm *of, const char *text)
{
    char *at = of->names + of->used;
    of->used = (of->used + strlen(text) + 1) % (PAGE - 64);
    if (of->used < strlen(text))
        at = of->names;
    return strcpy(at, text);
}

/* --- Threads of NCCL -------------------------------------------------------------------------- */

static uint64_t timer(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void net(struct comm *of, void *step)
{
    descriptor_7 it = descriptor(NET_PLUGIN, step);
    it.net_plugin.id = 0x20001;
    it.net_plugin.data = NULL;
    void *event = start(of, &it);
    state_args args = {.net_plugin = {NULL}};
    record(event, NET_PLUGIN_UPDATE, &args);
    stop(event);
}

/* Peer in a ring: the next rank, or the previous one. */
static void proxy_works(struct task *task, int is_send)
{
    int peer = (rank + (is_send ? 1 : world - 1)) % world;
    descriptor_7 it = descriptor(PROXY_OP, task->event);
    it.proxy_op = (proxy_op){getpid(), 0, peer, 2, 1 << 17, is_send};
    void *op = start(task->comm, &it);
    record(op, PROXY_OP_IN_PROGRESS, NULL);
    for (int i = 0; i < 2 && op != NULL; ++i) {
        it = descriptor(PROXY_STEP, op);
        it.proxy_step.step = i;
        void *step = start(task->comm, &it);
        state_args args = {.proxy_step = {1 << 17}};
        if (is_send) {
            record(step, STEP_SEND_PEER_WAIT, NULL);
            record(step, STEP_SEND_GPU_WAIT, NULL);
            record(step, STEP_SEND_WAIT, &args);
        } else {
            record(step, STEP_RECV_WAIT, NULL);
        }
        if (i == 1 && stands)
            return;
        if (i == 1 && slow_ms > 0 && is_send)
            usleep((useconds_t)slow_ms * 1000);
        if (!is_send) {
            record(step, STEP_RECV_FLUSH_WAIT, NULL);
            record(step, STEP_RECV_GPU_WAIT, &args);
        }
        if (step != NULL)
            net(task->comm, step);
        stop(step);
    }
    stop(op);
}

static void kernel_runs(struct task *task, uint8_t number)
{
    descriptor_7 it = descriptor(KERNEL_CH, task->event);
    it.kernel_ch.channel = number;
    it.kernel_ch.timer = timer();
    void *channel = start(task->comm, &it);
    if (hangs)
        return;
    if (channel != NULL) {
        it = descriptor(KERNEL_PHASE, channel);
        it.kernel_phase.channel = number;
        it.kernel_phase.phase = 0;
        it.kernel_phase.name = name(task->comm, "ring");
        it.kernel_phase.timer = timer();
        void *phase = start(task->comm, &it);
        state_args args = {.kernel_ch = {timer()}};
        record(phase, KERNEL_PHASE_STOP, &args);
        stop(phase);
    }
    state_args args = {.kernel_ch = {timer()}};
    record(channel, KERNEL_CH_STOP, &args);
    stop(channel);
}

/* The proxy thread, which executes launched calls. */
static void *proxy(void *none)
{
    (void)none;
    descriptor_7 it = descriptor(PROXY_CTRL, NULL);
    void *control = start(tasks[0].comm, &it);
    state_args args = {.proxy_ctrl = {task_count}};
    record(control, CTRL_APPEND, &args);
    record(control, CTRL_ACTIVE, NULL);
    for (int i = 0; i < task_count; ++i) {
        if (tasks[i].event == NULL || tasks[i].is_ce)
            continue;
        if (!hangs || stands) {
            proxy_works(&tasks[i], 1);
            if (stands || slow_ms > 0)
                proxy_works(&tasks[i], 0);
        }
        for (uint8_t channel = 0; channel < (tasks[i].is_p2p ? 1 : CHANNELS); ++channel)
            kernel_runs(&tasks[i], channel);
    }
    record(control, CTRL_IDLE, NULL);
    stop(control);
    return NULL;
}

static void in_a_thread(void *(*function)(void *))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, NULL) != 0)
        FAIL("no thread");
    pthread_join(thread, NULL);
}

static void start_work(struct task *task, void *group)
{
    const char *func = name(task->comm, task->func), *type = name(task->comm, "ncclFloat32");
    static float buffer[COUNT];
    descriptor_7 it = descriptor(task->is_p2p ? P2P : COLL, version < 5 ? group : task->api);
    if (task->is_ce) {
        it = descriptor(CE_COLL, task->api);
        it.ce_coll.seq = task->seq;
        it.ce_coll.func = func;
        it.ce_coll.send = it.ce_coll.recv = buffer;
        it.ce_coll.count = COUNT;
        it.ce_coll.root = 0;
        it.ce_coll.datatype = type;
        it.ce_coll.strategy = name(task->comm, "UC");
        it.ce_coll.is_synchronized = 0;
        it.ce_coll.batch_size = 1;
        it.ce_coll.batches = 1;
        it.ce_coll.ce_seq = 1;
        it.ce_coll.stream = NULL;
        if (version >= 7)
            it.ce_coll.user_tag = 0;
    } else if (task->is_p2p) {
        it.p2p.func = func;
        it.p2p.buffer = buffer;
        it.p2p.datatype = type;
        it.p2p.count = COUNT;
        it.p2p.peer = task->peer;
        if (version >= 5) {
            it.p2p.channels = 1;
            it.p2p.group = group;
        }
        if (version >= 7)
            it.p2p.user_tag = 0;
    } else {
        /* NCCL counts bytes if data is only moved. */
        int is_moved = task->function == 1 || task->function == 3;
        it.coll.seq = task->seq;
        it.coll.func = func;
        it.coll.send = it.coll.recv = buffer;
        it.coll.count = is_moved ? sizeof buffer : COUNT;
        it.coll.root = 0;
        it.coll.datatype = is_moved ? name(task->comm, "ncclInt8") : type;
        it.coll.channels = CHANNELS;
        it.coll.warps = 16;
        it.coll.algo = name(task->comm, "RING");
        it.coll.proto = name(task->comm, "LL");
        if (version >= 5)
            it.coll.group = group;
        if (version >= 7) {
            it.coll.kernel_variant = name(task->comm, "ring_ll");
            it.coll.is_symmetric = 0;
            it.coll.user_tag = 0;
        }
    }
    task->event = start(task->comm, &it);
}

/* The outermost end of a group. */
static void launch(void)
{
    record(group_api, GROUP_END_API_START, NULL);
    descriptor_7 it = descriptor(GROUP, group_api);
    void *group = task_count > 0 ? start(tasks[0].comm, &it) : NULL;
    for (int i = 0; i < task_count; ++i)
        start_work(&tasks[i], group);
    if (task_count > 0) {
        it = descriptor(KERNEL_LAUNCH, group_api);
        it.kernel_launch.stream = NULL;
        stop(start(tasks[0].comm, &it));
    }
    for (int i = 0; i < task_count; ++i) {
        if (tasks[i].is_ce)
            record(tasks[i].event, CE_COLL_START, NULL);
        else /* the end of this event means that the call was launched, not that it finished */
            stop(tasks[i].event);
    }
    stop(group);
    stop(group_api);
    group_api = NULL;
    if (task_count > 0)
        in_a_thread(proxy);
    slow_ms = 0;
    for (int i = 0; i < task_count; ++i)
        if (tasks[i].is_ce && !hangs) {
            record(tasks[i].event, CE_COLL_COMPLETE, NULL);
            stop(tasks[i].event);
        }
    if (hangs && task_count > 0)
        for (;;)
            pause();
    task_count = 0;
}

static void begin_group(void)
{
    if (depth++ > 0)
        return;
    descriptor_7 it = descriptor(GROUP_API, NULL);
    it.group_api.is_captured = 0;
    it.group_api.depth = 1;
    group_api = start(comm, &it);
    record(group_api, GROUP_START_API_STOP, NULL);
}

static void end_group(void)
{
    if (depth == 0)
        FAIL("] without [");
    if (--depth == 0)
        launch();
}

static const char *const functions[] = {"AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter", "Send", "Recv"};
static const char *const words[] = {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "send", "recv"};

static void call(int function, int peer, int is_ce)
{
    if (task_count == MAX_TASKS)
        FAIL("more than %d calls in a group", MAX_TASKS);
    begin_group();
    struct task *task = &tasks[task_count++];
    int is_p2p = function >= 5;
    *task = (struct task){.comm = comm, .func = functions[function], .function = function,
                          .is_p2p = is_p2p, .is_ce = is_ce, .peer = peer, .seq = comm->seq[function]++};
    descriptor_7 it = descriptor(is_p2p ? P2P_API : COLL_API, group_api);
    if (is_p2p) {
        it.p2p_api.func = name(comm, task->func);
        it.p2p_api.count = COUNT;
        it.p2p_api.datatype = name(comm, "ncclFloat32");
        it.p2p_api.stream = NULL;
        it.p2p_api.is_captured = 0;
        if (version >= 7)
            it.p2p_api.user_tag = 0;
    } else {
        it.coll_api.func = name(comm, task->func);
        it.coll_api.count = COUNT;
        it.coll_api.datatype = name(comm, "ncclFloat32");
        it.coll_api.root = 0;
        it.coll_api.stream = NULL;
        it.coll_api.is_captured = 0;
        if (version >= 7)
            it.coll_api.user_tag = 0;
    }
    task->api = start(comm, &it);
    stop(task->api);
    end_group();
}

/* A proxy's work for another process, whose event handle is invalid here. */
static void foreign(void)
{
    descriptor_7 it = descriptor(PROXY_OP, (void *)0xdead000);
    it.proxy_op = (proxy_op){getppid(), 0, 0, 1, 1 << 17, 1};
    stop(start(comm, &it));
}

/* --- Communicators ---------------------------------------------------------------------------- */

static const char *naming;

static void *init(void *none)
{
    (void)none;
    struct comm *new = &comms[comm_count++];
    new->names = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (new->names == MAP_FAILED)
        FAIL("no memory");
    /* The same on all ranks, like NCCL's hash. */
    new->hash = 0x6afe1cc17717e1f4;
    for (const char *c = naming; *c != 0; ++c)
        new->hash = (new->hash ^ (unsigned char)*c) * 0x100000001b3;
    const char *called = name(new, naming);
    int result = version < 5
        ? plugged->init_4(&new->context, &mask, called, new->hash, 1, world, rank, say)
        : plugged->init_5(&new->context, new->hash, &mask, called, 1, world, rank, say);
    if (result != 0)
        FAIL("the plugin does not want to: %d", result);
    comm = new;
    return NULL;
}

static void *finalize(void *none)
{
    (void)none;
    for (int i = 0; i < comm_count; ++i) {
        plugged->finalize(comms[i].context);
        munmap(comms[i].names, PAGE);
    }
    return NULL;
}

static void make_comm(const char *called)
{
    if (comm_count == MAX_COMMS)
        FAIL("more than %d communicators", MAX_COMMS);
    naming = called;
    in_a_thread(init);
}

static void execute(const char *word)
{
    int number;
    if (word[0] == '@') {
        char *rest;
        if (strtol(word + 1, &rest, 10) != rank)
            return;
        if (*rest != ':')
            FAIL("no such word: %s", word);
        word = rest + 1;
    }
    if (strcmp(word, "[") == 0) {
        begin_group();
        return;
    }
    if (strcmp(word, "]") == 0) {
        end_group();
        return;
    }
    if (strcmp(word, "hang") == 0) {
        hangs = 1;
        return;
    }
    if (strcmp(word, "stand") == 0) {
        hangs = stands = 1;
        return;
    }
    if (sscanf(word, "slow:%d", &slow_ms) == 1)
        return;
    if (strcmp(word, "foreign") == 0) {
        foreign();
        return;
    }
    if (strcmp(word, "ce_all_gather") == 0) {
        call(3, 0, 1);
        return;
    }
    if (strncmp(word, "comm:", 5) == 0) {
        make_comm(word + 5);
        return;
    }
    if (sscanf(word, "sleep:%d", &number) == 1) {
        usleep((unsigned)number * 1000);
        return;
    }
    for (int i = 0; i < 5; ++i)
        if (strcmp(word, words[i]) == 0) {
            call(i, 0, 0);
            return;
        }
    if (sscanf(word, "send:%d", &number) == 1)
        call(5, number, 0);
    else if (sscanf(word, "recv:%d", &number) == 1)
        call(6, number, 0);
    else
        FAIL("no such word: %s", word);
}

static int environment(const char *variable, int otherwise)
{
    const char *value = getenv(variable);
    return value != NULL ? atoi(value) : otherwise;
}

int main(int argc, char **argv)
{
    void *library = NULL;
    if (argc < 3)
        FAIL("usage: profiler_host NEWEST PLUGIN WORD...");
    rank = environment("RANK", 0);
    world = environment("WORLD_SIZE", 1);
    library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        FAIL("%s", dlerror());
    for (version = atoi(argv[1]); version >= 4 && plugged == NULL; --version) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
        plugged = dlsym(library, symbol);
        if (plugged != NULL)
            break;
    }
    if (plugged == NULL || version > 7)
        FAIL("no version of the plugin is known");
    make_comm("world");
    for (int i = 3; i < argc; ++i)
        execute(argv[i]);
    if (depth > 0)
        FAIL("[ without ]");
    printf("rank %d: %s, version %d, mask %d: %u events, %u taken, %u stopped, %u states\n", rank,
           plugged->name, version, mask, started, taken, stopped, states);
    in_a_thread(finalize);
    dlclose(library);
    /* Gives threads of the plugin, if any, time to run. */
    usleep(50 * 1000);
    library = dlopen(argv[2], RTLD_NOW | RTLD_NOLOAD);
    printf("rank %d: %s after it was closed\n", rank, library != NULL ? "mapped" : "gone");
    return 0;
}
