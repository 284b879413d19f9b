/*
 * ddp-doctor: record the collectives of a training process.
 *
 * Link with -lddp_doctor. The library creates a black box for the process: a file in shared memory
 * that the library writes and other processes read. The library itself sends nothing. The box is read
 * by `ddp-doctor run` if it started the process. Otherwise, if DDP_DOCTOR_COORDINATOR=HOST:PORT is
 * set, the library starts the program `ddp-doctor` beside the process to read it. The program is
 * searched for beside the library and on PATH; DDP_DOCTOR_PROGRAM overrides the search.
 * DDP_DOCTOR=0 disables the library.
 *
 * The library has no thread of its own, with one exception: if DDP_DOCTOR_GPU_MEMORY=1 is set, a
 * thread samples the memory of the GPUs that the process uses, once a second. It neither loads nor
 * initializes CUDA.
 *
 * Every function
 *   - can be called from any thread and does not block; functions marked "hot" take some tens of
 *     nanoseconds, and neither allocate nor make a system call after the thread's first hot call;
 *   - never aborts and never throws; it may change errno;
 *   - does nothing and returns 0 before ddp_doctor_open(), after ddp_doctor_close(), and in a forked
 *     child until the child opens a box of its own;
 *   - does nothing and returns 0 if a required pointer is NULL or a pointer is misaligned.
 * No function may be called in a signal handler. The functions that open a box return a status
 * instead of 0, and wait about a millisecond if they start the program `ddp-doctor`; where
 * kernel.yama.ptrace_scope is 1, until it follows the box, two seconds at most.
 *
 * Text is UTF-8 with an explicit length, and is cut at 4096 bytes. The library copies all data that
 * pointers refer to before a function returns, except the two names passed to ddp_doctor_here().
 *
 * Numbers returned by functions (of groups, sites, texts and calls) are valid in this process until
 * it creates another box. 0 means "none" and is accepted wherever a number is expected.
 *
 * Ranks: a "global rank" counts all processes of the job, a "group rank" the members of a group in
 * group order.
 */
#ifndef DDP_DOCTOR_H
#define DDP_DOCTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Version of this interface. It is incremented when the meaning of an existing part changes, so that
 * programs compiled against an earlier header would break. Additions do not increment it.
 */
#define DDP_DOCTOR_ABI_VERSION 1u

/* DDP_DOCTOR_ABI_VERSION of the loaded library. */
uint32_t ddp_doctor_abi_version(void);

/* Version of ddp-doctor, such as "0.1.0". Valid while the library is loaded. */
const char *ddp_doctor_version(void);

/* UTF-8 text, not necessarily NUL-terminated. `data` may be NULL if `length` is 0. */
typedef struct ddp_doctor_text {
    const char *data;
    size_t length;
} ddp_doctor_text;

/* Converts a NUL-terminated string, or NULL for an empty text. */
static inline ddp_doctor_text ddp_doctor_text_of(const char *text)
{
    ddp_doctor_text result;
    result.data = text;
    result.length = text ? strlen(text) : 0;
    return result;
}

/* --- The process ------------------------------------------------------------------------------ */

/* Status of ddp_doctor_open(). After any status the program may go on and call every function. */
enum {
    DDP_DOCTOR_OK = 0,
    DDP_DOCTOR_ALREADY_OPEN = 1, /* the process has a black box; it was kept and its identity updated */
    DDP_DOCTOR_DISABLED = 2,     /* DDP_DOCTOR=0 is set */
    DDP_DOCTOR_NO_ROOM = 3,      /* no black box could be created; a marker file was left if possible */
    DDP_DOCTOR_BAD_ARGUMENT = 4  /* a pointer is NULL or misaligned, or `size` is invalid */
};

/* Identity of the process; -1 for a value that is not yet known. */
typedef struct ddp_doctor_identity {
    int32_t rank;       /* global rank */
    int32_t world_size; /* number of ranks */
    int32_t local_rank; /* rank within this node */
} ddp_doctor_identity;

/*
 * Creates the black box of this process, about 1.6 MiB. Call it when the process joins the job and
 * knows its rank. `layer` names the reporting layer: "c". The box is created in DDP_DOCTOR_BOX_DIR if
 * set, otherwise in a directory of this user in /dev/shm; if that has no room, in
 * DDP_DOCTOR_RUN_DIR/boxes.
 *
 * The job id is the first of DDP_DOCTOR_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID and PMIX_NAMESPACE that
 * is set. Ranks of one launch are recognized by MASTER_PORT and by the launcher's id of the launch.
 */
int32_t ddp_doctor_open(ddp_doctor_text layer, const ddp_doctor_identity *identity);

/* Options of ddp_doctor_open_with(). Zero the structure first; later versions may add fields. */
typedef struct ddp_doctor_options {
    size_t size;                  /* sizeof(ddp_doctor_options) */
    ddp_doctor_text layer;        /* empty: "c" */
    ddp_doctor_text job;          /* empty: from the environment, as for ddp_doctor_open() */
    ddp_doctor_text directory;    /* empty: from the environment, as for ddp_doctor_open() */
    ddp_doctor_identity identity; /* 0 is a valid rank: set unknown values to -1 */
    uint32_t attempt_plus_1;      /* 1-based start count of the job; 0: as counted by the launcher */
} ddp_doctor_options;

/* Like ddp_doctor_open(), with options. */
int32_t ddp_doctor_open_with(const ddp_doctor_options *options);

/* Sets or changes the identity, for example after an elastic restart. Fields that are -1 are kept. */
void ddp_doctor_set_identity(const ddp_doctor_identity *identity);

/* Returns 1 if this process has an open black box. */
int32_t ddp_doctor_is_open(void);

/*
 * Marks the box as closed. The records stay readable. A process need not call it, since its end is
 * detected from outside. ddp_doctor_open() reopens the same box.
 */
void ddp_doctor_close(void);

/* Records that the process is about to exit with this status; `how`: "main returned", "_exit", … */
void ddp_doctor_exit(int32_t code, ddp_doctor_text how);

/* The same with the line that ends the process; `site` is from ddp_doctor_site(), 0: unknown. */
void ddp_doctor_exit_at(int32_t code, ddp_doctor_text how, uint32_t site);

/* --- Places, texts, groups -------------------------------------------------------------------- */

/*
 * Like ddp_doctor_site(), with the site `caller` from which that line was reached (0: unknown). For
 * lines inside wrapper functions.
 */
uint32_t ddp_doctor_site_from(ddp_doctor_text file, ddp_doctor_text function, uint32_t line, uint32_t caller);

/*
 * Number of a line of a library that was called from the site `caller` (0: unknown). Reports name the
 * innermost caller that is no such line, and list the lines of libraries between it and the call.
 */
uint32_t ddp_doctor_library_site(ddp_doctor_text file, ddp_doctor_text function, uint32_t line, uint32_t caller);

/*
 * Number of the current source line, for every parameter or field `site`. Hot: a line is registered
 * once.
 */
#define DDP_DOCTOR_HERE ddp_doctor_here(__FILE__, __func__, (uint32_t)__LINE__)

/*
 * Number of a source line. Both names are NUL-terminated and must stay valid and unchanged until the
 * process ends, like __FILE__ and __func__. `function` may be NULL.
 */
uint32_t ddp_doctor_here(const char *file, const char *function, uint32_t line);

/* Number of a source line. Each call takes one of 4096 table entries. `line` 0: unknown. */
uint32_t ddp_doctor_site(ddp_doctor_text file, ddp_doctor_text function, uint32_t line);

/* Number of a text, for ddp_doctor_phase_begin(). Equal texts may get different numbers. */
uint32_t ddp_doctor_string(ddp_doctor_text text);

/*
 * Number of a process group. `members` are global ranks in group order, the same on all members.
 * `name` is shared by all members ("world", "tensor-parallel 3"), `description` is for display,
 * `backend` is the communication library ("nccl", "gloo", "sockets"). `epoch` counts the
 * initializations of the world in this process, from 0. Register a group that is created again once
 * more. There is room for 512 groups.
 */
uint32_t ddp_doctor_group(ddp_doctor_text name, ddp_doctor_text description, ddp_doctor_text backend,
                          uint32_t epoch, const uint32_t *members, size_t member_count);

/* A process group about to be created. The calling process need not be a member. */
typedef struct ddp_doctor_creation {
    uint32_t op;          /* DDP_DOCTOR_OP_NEW_GROUP or DDP_DOCTOR_OP_SPLIT_GROUP */
    uint32_t epoch;       /* as for ddp_doctor_group() */
    ddp_doctor_text name; /* name by which the members find each other */
    ddp_doctor_text description;
    ddp_doctor_text backend;
    const uint32_t *members; /* global ranks in group order */
    size_t member_count;
    uint32_t site;
    uint32_t takes_all; /* 1: the creation is known to block until all members take part */
} ddp_doctor_creation;

/*
 * Records that the group is about to be created. Returns the id of the call, for
 * ddp_doctor_returned() (0: nothing was recorded). A process that becomes a member calls
 * ddp_doctor_group() after the creation.
 */
uint64_t ddp_doctor_creating(const ddp_doctor_creation *group);

/*
 * Sets the timeout after which calls of the group fail, from now on. Groups for which this is not
 * called are not assumed to have a timeout.
 */
void ddp_doctor_group_timeout(uint32_t group, uint64_t milliseconds);

/* Records that this process left the group and issues no more calls in it. */
void ddp_doctor_group_destroyed(uint32_t group);

/* --- Calls ------------------------------------------------------------------------------------ */

/* ddp_doctor_call.op. Variants that are compatible with each other on the wire share one op.
 * From DDP_DOCTOR_OP_INIT_PROCESS_GROUP on, except DDP_DOCTOR_OP_MONITORED_BARRIER: calls that may block but
 * are not collectives: no sequence number; `group` may be 0. */
enum ddp_doctor_op {
    DDP_DOCTOR_OP_ALL_REDUCE = 1,
    DDP_DOCTOR_OP_ALL_GATHER = 2,
    DDP_DOCTOR_OP_REDUCE_SCATTER = 3,
    DDP_DOCTOR_OP_ALL_TO_ALL = 4,
    DDP_DOCTOR_OP_BARRIER = 5,
    DDP_DOCTOR_OP_BROADCAST = 6,
    DDP_DOCTOR_OP_REDUCE = 7,
    DDP_DOCTOR_OP_GATHER = 8,
    DDP_DOCTOR_OP_SCATTER = 9,
    DDP_DOCTOR_OP_SEND = 10,
    DDP_DOCTOR_OP_RECV = 11,
    DDP_DOCTOR_OP_ALL_REDUCE_COALESCED = 12,
    DDP_DOCTOR_OP_ALL_GATHER_COALESCED = 13,
    DDP_DOCTOR_OP_REDUCE_SCATTER_COALESCED = 14,
    DDP_DOCTOR_OP_INIT_PROCESS_GROUP = 32,
    DDP_DOCTOR_OP_NEW_GROUP = 33,
    DDP_DOCTOR_OP_DESTROY_PROCESS_GROUP = 34,
    DDP_DOCTOR_OP_MONITORED_BARRIER = 35,
    DDP_DOCTOR_OP_SPLIT_GROUP = 36,
    DDP_DOCTOR_OP_OTHER = 63,
};

/* ddp_doctor_call.dtype; 0: unknown, matches every dtype. */
enum {
    DDP_DOCTOR_DTYPE_FLOAT32 = 1,
    DDP_DOCTOR_DTYPE_FLOAT64 = 2,
    DDP_DOCTOR_DTYPE_FLOAT16 = 3,
    DDP_DOCTOR_DTYPE_BFLOAT16 = 4,
    DDP_DOCTOR_DTYPE_INT8 = 5,
    DDP_DOCTOR_DTYPE_INT16 = 6,
    DDP_DOCTOR_DTYPE_INT32 = 7,
    DDP_DOCTOR_DTYPE_INT64 = 8,
    DDP_DOCTOR_DTYPE_UINT8 = 9,
    DDP_DOCTOR_DTYPE_UINT16 = 10,
    DDP_DOCTOR_DTYPE_UINT32 = 11,
    DDP_DOCTOR_DTYPE_UINT64 = 12,
    DDP_DOCTOR_DTYPE_BOOL = 13,
    DDP_DOCTOR_DTYPE_FLOAT8_E4M3FN = 14,
    DDP_DOCTOR_DTYPE_FLOAT8_E5M2 = 15,
    DDP_DOCTOR_DTYPE_COMPLEX64 = 16,
    DDP_DOCTOR_DTYPE_COMPLEX128 = 17,
    DDP_DOCTOR_DTYPE_OTHER = 63
};

/* ddp_doctor_call.reduce_op; 0: unknown or none. */
enum {
    DDP_DOCTOR_REDUCE_SUM = 1,
    DDP_DOCTOR_REDUCE_AVG = 2,
    DDP_DOCTOR_REDUCE_PRODUCT = 3,
    DDP_DOCTOR_REDUCE_MIN = 4,
    DDP_DOCTOR_REDUCE_MAX = 5,
    DDP_DOCTOR_REDUCE_BAND = 6,
    DDP_DOCTOR_REDUCE_BOR = 7,
    DDP_DOCTOR_REDUCE_BXOR = 8,
    DDP_DOCTOR_REDUCE_PREMUL_SUM = 9,
    DDP_DOCTOR_REDUCE_OTHER = 63
};

/* Bits of ddp_doctor_call.flags. */
enum {
    DDP_DOCTOR_ASYNC = 1,          /* asynchronous: the caller does not wait for completion */
    DDP_DOCTOR_HIDDEN = 2,         /* issued by the framework, not directly by user code */
    DDP_DOCTOR_P2P = 4,            /* send or receive; set by the library */
    DDP_DOCTOR_NUMEL = 8,          /* `numel` is valid */
    DDP_DOCTOR_SHAPE = 16,         /* `dims[0..ndim]` is the complete shape */
    DDP_DOCTOR_ROOT = 32,          /* `root` is valid */
    DDP_DOCTOR_TAG = 64,           /* `tag` is valid */
    DDP_DOCTOR_BORROWED_SITE = 128 /* `site` is the main thread's location, not the caller's */
};

/* A call about to be made, 80 bytes. A program may keep one per kind of call and reuse it. */
typedef struct ddp_doctor_call {
    uint8_t op;         /* DDP_DOCTOR_OP_… */
    uint8_t dtype;      /* DDP_DOCTOR_DTYPE_… */
    uint8_t reduce_op;  /* DDP_DOCTOR_REDUCE_… */
    uint8_t ndim;       /* number of dimensions in `dims`, at most 10 */
    uint16_t flags;     /* DDP_DOCTOR_ASYNC | … */
    uint16_t reserved;  /* 0 */
    uint32_t group;     /* from ddp_doctor_group(); 0: no group */
    uint32_t site;      /* DDP_DOCTOR_HERE; 0: unknown */
    uint32_t tensors;   /* number of tensors in the call */
    int32_t root;       /* group rank of the root, or of the peer of a send or receive */
    int32_t tag;        /* tag of a send or receive */
    uint32_t reserved2; /* 0 */
    uint64_t numel;     /* number of elements of the first tensor */
    uint32_t dims[10];  /* shape of the first tensor */
} ddp_doctor_call;

/*
 * Records a call before it is made, assigns its sequence number in the group and returns its id
 * (0: nothing was recorded). Record the calls of a group in the order in which they are made. Hot.
 */
uint64_t ddp_doctor_issued(const ddp_doctor_call *call);

/* Like ddp_doctor_issued(), with `group` and `site` as parameters, so that one structure can be shared. Hot. */
uint64_t ddp_doctor_issued_at(const ddp_doctor_call *call, uint32_t group, uint32_t site);

/*
 * Records the split sizes of an all_to_all that was just issued, in elements: one per member, or
 * one alone, a total that is divided evenly. `output` is 0 for the input splits, otherwise the sizes are
 * the output splits. Sizes above 32 bits are recorded as UINT32_MAX; lists are cut after 1000 entries.
 */
void ddp_doctor_splits(uint64_t call, int32_t output, const int64_t *sizes, size_t count);

/* Records that the call returned to its caller; an asynchronous call may still be running. Hot. */
void ddp_doctor_returned(uint64_t call);

/* Records that this thread is about to wait for the call (0: unknown) at that site. Hot. */
void ddp_doctor_wait_begin(uint64_t call, uint32_t site);

/* Records that the wait for the call is over. Hot. */
void ddp_doctor_wait_end(uint64_t call);

/* Records that the call is complete, without a wait. Hot. */
void ddp_doctor_completed(uint64_t call);

/* Records that the call was never waited for and no longer can be. `site`: where it was issued. */
void ddp_doctor_unawaited(uint64_t call, uint32_t site);

/* --- The program ------------------------------------------------------------------------------ */

/* Records the start of a training step. Returns its 1-based number. Hot. */
uint32_t ddp_doctor_step(void);

/* Bits of the flags of ddp_doctor_forward(). */
enum {
    DDP_DOCTOR_REPEATED = 1024,       /* the input is the same as that of the previous forward */
    DDP_DOCTOR_UNSYNCHRONISED = 2048, /* gradients are not synchronized (gradient accumulation) */
    DDP_DOCTOR_UPDATED = 8192,        /* parameters were updated since the previous forward */
    DDP_DOCTOR_SEES_UPDATES = 16384   /* whether they were is known */
};

/*
 * Like ddp_doctor_step(), for a step that begins with a training forward at `site` (0: unknown).
 * `batches` is the number of batches drawn so far from the source of its input (-1: unknown); steps of
 * different ranks are compared by it. Call either this or ddp_doctor_step(), not both.
 */
uint32_t ddp_doctor_forward(uint32_t site, int64_t batches, uint32_t flags);

/* Record the start and the end of a phase ("checkpoint"); `name` is from ddp_doctor_string(). Hot. */
void ddp_doctor_phase_begin(uint32_t name);
void ddp_doctor_phase_end(uint32_t name);

/* Kinds of ddp_doctor_exception(). */
enum {
    DDP_DOCTOR_EXCEPTION_UNCAUGHT = 1,           /* not caught; ends the process */
    DDP_DOCTOR_EXCEPTION_LEFT_FORWARD = 2,       /* raised out of a forward pass */
    DDP_DOCTOR_EXCEPTION_LEFT_BACKWARD = 3,      /* raised out of a backward pass */
    DDP_DOCTOR_EXCEPTION_LEFT_COLLECTIVE = 4,    /* raised out of a call of the communication library */
    DDP_DOCTOR_EXCEPTION_IN_FLIGHT = 5,          /* being handled while the next call is made */
    DDP_DOCTOR_EXCEPTION_UNCAUGHT_IN_THREAD = 6, /* ends a thread other than the main thread */
    DDP_DOCTOR_EXCEPTION_IGNORED_CALL = 7        /* none: a call by a rank outside the group had no effect */
};

/* Records an exception or an error; `text` is "Type: message". */
void ddp_doctor_exception(int32_t kind, ddp_doctor_text text, uint32_t site);

/* Records that the program's input is exhausted: an iterator over its data has ended. */
void ddp_doctor_input_ended(uint32_t site);

/* Records that the last batch of the program's input was drawn: the `batches`-th one from its source, counted as for
 * ddp_doctor_forward(). */
void ddp_doctor_last_input(uint64_t batches, uint32_t site);

/* Activities of ddp_doctor_spent(). */
enum {
    DDP_DOCTOR_SPENT_INPUT = 1,   /* waiting for input, such as a batch of the data loader */
    DDP_DOCTOR_SPENT_GARBAGE = 2, /* garbage collection */
    DDP_DOCTOR_SPENT_BUCKETS = 3  /* waiting for averaged gradients at the end of a backward pass */
};

/*
 * Records that the calling thread has just spent this time on something other than its own work. Times
 * below a millisecond are not worth recording, except waits for gradients, each of which is compared
 * with earlier ones.
 */
void ddp_doctor_spent(int32_t on, uint64_t nanoseconds, uint32_t site);

/* Records a version or a setting that ranks may have to agree on, such as ("nccl", "2.27.3"). */
void ddp_doctor_setting(ddp_doctor_text name, ddp_doctor_text value);

/* An unknown value in ddp_doctor_memory_sample. */
#define DDP_DOCTOR_UNKNOWN UINT64_MAX

/* Memory of one device as seen by this process; DDP_DOCTOR_UNKNOWN for unknown values. */
typedef struct ddp_doctor_memory_sample {
    size_t size;        /* sizeof(ddp_doctor_memory_sample); later versions may add fields */
    uint64_t device;    /* device index in this process */
    uint64_t used;      /* bytes in use on the device, by all processes */
    uint64_t total;     /* bytes of the device */
    uint64_t allocated; /* bytes that the framework's allocator has given to tensors */
    uint64_t reserved;  /* bytes that the framework's allocator holds */
    uint64_t peak;      /* peak of `allocated` */
    uint64_t split;     /* bytes held in unused remainders of blocks that are in use */
    uint64_t retries;   /* how often the allocator released its cache and retried */
    uint64_t ooms;      /* how often an allocation failed */
    uint64_t largest;   /* bytes of the largest free block that the allocator holds */
} ddp_doctor_memory_sample;

/* Records a sample. One per second is enough. Host memory is sampled from outside the process. */
void ddp_doctor_memory(const ddp_doctor_memory_sample *sample);

/* ddp_doctor_parameter_list.fact: what is recorded about the parameters in `lines`. */
enum {
    DDP_DOCTOR_PARAMETERS_LAYOUT = 1,           /* parameters of the model that require a gradient, in the order
                                                   in which ranks compare them; record it when the model is made */
    DDP_DOCTOR_PARAMETERS_WITHOUT_GRADIENT = 2, /* they have no gradient after a backward pass */
    DDP_DOCTOR_PARAMETERS_COMPLETE = 3,         /* a later backward pass gave all of them their gradients */
    DDP_DOCTOR_PARAMETERS_READY_TWICE = 4,      /* their gradients were ready twice in one backward pass */
    DDP_DOCTOR_PARAMETERS_GRAPH_CHANGED = 5,    /* the graph was declared static and changed */
    DDP_DOCTOR_PARAMETERS_OUTSIDE = 6,          /* in consecutive steps they got gradients from outside the forward
                                                   after which gradients are averaged, and these were consumed */
    DDP_DOCTOR_PARAMETERS_NEVER_UNUSED = 7,     /* every step searches for unused parameters and none was ever
                                                   found; `first`: duration of the search in microseconds */
    DDP_DOCTOR_PARAMETERS_USED_AT = 8,          /* `site` is a line at which the forward uses the part of the model
                                                   that they belong to and that got no gradients */
    DDP_DOCTOR_PARAMETERS_VALUES = 9,           /* `values` are elements of parameter `first`; `total`: number of
                                                   backward passes so far after which gradients were averaged */
    DDP_DOCTOR_PARAMETERS_THAWED = 10           /* they required no gradient when the model was made, and got one in
                                                   consecutive steps, which is not averaged */
};

/* Parameters of a model whose gradients are averaged over the ranks of a group. */
typedef struct ddp_doctor_parameter_list {
    size_t size;           /* sizeof(ddp_doctor_parameter_list); later versions may add fields */
    uint32_t fact;         /* DDP_DOCTOR_PARAMETERS_… */
    uint32_t group;        /* number of the group */
    uint32_t model;        /* 1-based index of the model within the group, in this process */
    uint32_t first;        /* layout: 0-based index of the first parameter in `lines`; else see `fact` */
    uint64_t total;        /* number of parameters; `lines` may list fewer */
    ddp_doctor_text lines; /* one line each: "float32 64,128 head.weight"; "-" if there are no sizes */
    uint32_t site;         /* source line */
    uint32_t dtype;        /* values: element type, DDP_DOCTOR_DTYPE_… */
    uint32_t values[8];    /* values: bits of the elements; of 64-bit elements the upper half */
    uint32_t value_count;  /* values: number of elements; every rank records the same elements */
} ddp_doctor_parameter_list;

/*
 * Records a fact about parameters. Split a long layout into pieces of up to 4096 bytes, and record it
 * before the first call made for the model, so that the first difference between ranks can be found.
 */
void ddp_doctor_parameters(const ddp_doctor_parameter_list *list);

/* Kinds of ddp_doctor_note(). */
enum {
    DDP_DOCTOR_NOTE_NO_HOOKS = 1,
    DDP_DOCTOR_NOTE_CAPTURE_LOST = 2,
    DDP_DOCTOR_NOTE_NO_BLACK_BOX = 3,
    DDP_DOCTOR_NOTE_RANK_NOT_SEEN = 4,
    DDP_DOCTOR_NOTE_UNREADABLE = 5,
    DDP_DOCTOR_NOTE_NO_LIBRARY = 6,
    DDP_DOCTOR_NOTE_SEVERAL_RANKS = 7,
    DDP_DOCTOR_NOTE_JOURNAL_CUT = 8 /* made by readers of journals, not by programs */
};

/* Records a limitation of the capture: part of this process is not recorded. */
void ddp_doctor_note(int32_t kind, ddp_doctor_text text);

#ifdef __cplusplus
}
#endif

#endif /* DDP_DOCTOR_H */
