/*
 * The binary interface between NCCL and its profiler plugins, versions 4 to 7
 * (NCCL 2.27 to 2.32), for 64-bit little-endian machines. The offsets are those
 * of NCCL's own debug information.
 */
#ifndef PROFILER_H
#define PROFILER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    GROUP = 1, COLL = 2, P2P = 4, PROXY_OP = 8, PROXY_STEP = 16, PROXY_CTRL = 32, KERNEL_CH = 64,
    NET_PLUGIN = 128,
    GROUP_API = 256, COLL_API = 512, P2P_API = 1024, KERNEL_LAUNCH = 2048, /* since version 5 */
    CE_COLL = 4096, CE_SYNC = 8192, CE_BATCH = 16384,                      /* since version 6 */
    KERNEL_PHASE = 32768,                                                  /* since version 7 */
};

enum {
    STEP_SEND_GPU_WAIT = 8, STEP_SEND_WAIT = 9, STEP_RECV_WAIT = 10, STEP_RECV_FLUSH_WAIT = 11,
    STEP_RECV_GPU_WAIT = 12, CTRL_IDLE = 13, CTRL_ACTIVE = 14, CTRL_APPEND = 17,
    PROXY_OP_IN_PROGRESS = 19, STEP_SEND_PEER_WAIT = 20, NET_PLUGIN_UPDATE = 21, KERNEL_CH_STOP = 22,
    GROUP_START_API_STOP = 23, GROUP_END_API_START = 24,
    CE_COLL_START = 25, CE_COLL_COMPLETE = 26, KERNEL_PHASE_STOP = 31,
};

typedef union {
    struct { size_t bytes; } proxy_step;
    struct { int appended; } proxy_ctrl;
    struct { void *data; } net_plugin;
    struct { uint64_t timer; } kernel_ch;
} state_args;

typedef struct { pid_t pid; uint8_t channel; int peer, steps, chunk, is_send; } proxy_op;

/* Version 4. */
typedef struct {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            uint64_t seq;
            const char *func;
            const void *send, *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algo, *proto;
        } coll;
        struct {
            const char *func;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
        } p2p;
        proxy_op proxy_op;
        struct { int step; } proxy_step;
        struct { uint8_t channel; uint64_t timer; } kernel_ch;
        struct { int64_t id; void *data; } net_plugin;
    };
} descriptor_4;

/* Version 7. Versions 5 and 6 are prefixes with the same offsets. */
typedef struct {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct { _Bool is_captured; int depth; } group_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            _Bool is_captured;
            uint64_t user_tag; /* 7 */
        } coll_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            void *stream;
            _Bool is_captured;
            uint64_t user_tag; /* 7 */
        } p2p_api;
        struct { void *stream; } kernel_launch;
        struct {
            uint64_t seq;
            const char *func;
            const void *send, *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algo, *proto;
            void *group;
            const char *kernel_variant; /* 7 */
            _Bool is_symmetric;         /* 7 */
            uint64_t user_tag;          /* 7 */
        } coll;
        struct {
            const char *func;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
            void *group;
            uint64_t user_tag; /* 7 */
        } p2p;
        struct { /* 6 */
            uint64_t seq;
            const char *func;
            const void *send, *recv;
            size_t count;
            int root;
            const char *datatype, *strategy;
            _Bool is_synchronized;
            uint32_t batch_size, batches, ce_seq;
            void *stream;
            uint64_t user_tag; /* 7 */
        } ce_coll;
        proxy_op proxy_op;
        struct { int step; } proxy_step;
        struct { uint8_t channel; uint64_t timer; } kernel_ch;
        struct { uint8_t channel, phase; const char *name; uint64_t timer; } kernel_phase; /* 7 */
        struct { int64_t id; void *data; } net_plugin;
    };
} descriptor_7;

#define AT(type, field, offset) \
    _Static_assert(offsetof(type, field) == (offset), #type "." #field)

_Static_assert(sizeof(state_args) == 8, "arguments of a state");
_Static_assert(sizeof(descriptor_4) == 104, "version 4");
AT(descriptor_4, parent, 8);
AT(descriptor_4, rank, 16);
AT(descriptor_4, coll.seq, 24);
AT(descriptor_4, coll.func, 32);
AT(descriptor_4, coll.count, 56);
AT(descriptor_4, coll.root, 64);
AT(descriptor_4, coll.datatype, 72);
AT(descriptor_4, coll.channels, 80);
AT(descriptor_4, coll.warps, 81);
AT(descriptor_4, coll.algo, 88);
AT(descriptor_4, coll.proto, 96);
AT(descriptor_4, p2p.buffer, 32);
AT(descriptor_4, p2p.datatype, 40);
AT(descriptor_4, p2p.count, 48);
AT(descriptor_4, p2p.peer, 56);
AT(descriptor_4, p2p.channels, 60);
AT(descriptor_4, kernel_ch.timer, 32);
_Static_assert(sizeof(descriptor_7) == 136, "version 7");
AT(descriptor_7, parent, 8);
AT(descriptor_7, rank, 16);
AT(descriptor_7, group_api.depth, 28);
AT(descriptor_7, coll_api.count, 32);
AT(descriptor_7, coll_api.datatype, 40);
AT(descriptor_7, coll_api.root, 48);
AT(descriptor_7, coll_api.stream, 56);
AT(descriptor_7, coll_api.is_captured, 64);
AT(descriptor_7, coll_api.user_tag, 72);
AT(descriptor_7, p2p_api.stream, 48);
AT(descriptor_7, p2p_api.is_captured, 56);
AT(descriptor_7, p2p_api.user_tag, 64);
AT(descriptor_7, coll.proto, 96);
AT(descriptor_7, coll.group, 104);
AT(descriptor_7, coll.kernel_variant, 112);
AT(descriptor_7, coll.is_symmetric, 120);
AT(descriptor_7, coll.user_tag, 128);
AT(descriptor_7, p2p.peer, 56);
AT(descriptor_7, p2p.channels, 60);
AT(descriptor_7, p2p.group, 64);
AT(descriptor_7, p2p.user_tag, 72);
AT(descriptor_7, ce_coll.strategy, 80);
AT(descriptor_7, ce_coll.is_synchronized, 88);
AT(descriptor_7, ce_coll.batch_size, 92);
AT(descriptor_7, ce_coll.batches, 96);
AT(descriptor_7, ce_coll.ce_seq, 100);
AT(descriptor_7, ce_coll.stream, 104);
AT(descriptor_7, ce_coll.user_tag, 112);
AT(descriptor_7, proxy_op.channel, 28);
AT(descriptor_7, proxy_op.peer, 32);
AT(descriptor_7, proxy_op.steps, 36);
AT(descriptor_7, proxy_op.chunk, 40);
AT(descriptor_7, proxy_op.is_send, 44);
AT(descriptor_7, kernel_phase.phase, 25);
AT(descriptor_7, kernel_phase.name, 32);
AT(descriptor_7, kernel_phase.timer, 40);

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

/* The table that a plugin exports as `ncclProfiler_v4` to `ncclProfiler_v7`. */
typedef struct {
    const char *name;
    union {
        int (*init_4)(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int nodes,
                      int ranks, int rank, logger log);
        int (*init_5)(void **context, uint64_t comm_id, int *mask, const char *comm_name, int nodes,
                      int ranks, int rank, logger log);
    };
    int (*start)(void *context, void **handle, void *descriptor);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, state_args *args);
    int (*finalize)(void *context);
} plugin;
_Static_assert(sizeof(plugin) == 48, "plugin");

#endif
