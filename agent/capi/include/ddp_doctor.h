/*
 * ddp-doctor: report the collectives of a training process.
 *
 * Link with -lddp_doctor. The library makes a black box for the process: a file in shared memory,
 * which it writes and others read. It sends nothing anywhere by itself. Who reads the box is
 * `ddp-doctor run`, where it started the process; else, where DDP_DOCTOR_COORDINATOR=HOST:PORT is in
 * the environment, the program `ddp-doctor`, which the library then starts beside the process
 * (found beside the library, on PATH, or as DDP_DOCTOR_PROGRAM). DDP_DOCTOR=0 switches everything off.
 *
 * DDP_DOCTOR_GPU_MEMORY=1 has a thread of the library sample the memory of the GPUs that the process
 * uses, once a second. It neither loads nor initialises CUDA. Otherwise the library has no thread.
 *
 * Every call
 *   - is safe from any thread and blocks on nothing; those marked "hot" take some tens of
 *     nanoseconds, allocate nothing and make no system call once a thread has made one of them;
 *   - never aborts and never throws; it may change errno;
 *   - does nothing and returns 0 before ddp_doctor_open(), after ddp_doctor_close(), and in a forked
 *     child, which may open a box of its own;
 *   - does nothing and returns 0 where a pointer is NULL that must not be, or misaligned.
 * No call is safe in a signal handler.
 *
 * Text is UTF-8 with a length and is copied: whatever a pointer leads to may be gone when the call
 * returns, but for the two names of ddp_doctor_here(). Text is cut at 4096 bytes.
 *
 * Numbers that calls return (of groups, sites, texts, calls) are this process's until it opens a box
 * anew; 0 is "none", and may be passed wherever a number is.
 *
 * Ranks: "global" counts all processes of the job, "group rank" the members of a group in its order.
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
 * Version of this interface. It grows when something that was there changes its meaning, which a
 * program compiled against another header would not survive; what is only added does not count.
 */
#define DDP_DOCTOR_ABI_VERSION 1u

/* DDP_DOCTOR_ABI_VERSION of the library. */
uint32_t ddp_doctor_abi_version(void);

/* Version of ddp-doctor, such as "0.1.0". Lives as long as the library. */
const char *ddp_doctor_version(void);

/* Text that does not have to end in a zero. `data` may be NULL when `length` is 0. */
typedef struct ddp_doctor_text {
    const char *data;
    size_t length;
} ddp_doctor_text;

/* A text that ends in a zero, or NULL for none, as a ddp_doctor_text. */
static inline ddp_doctor_text ddp_doctor_text_of(const char *text)
{
    ddp_doctor_text result;
    result.data = text;
    result.length = text ? strlen(text) : 0;
    return result;
}

/* --- The process ------------------------------------------------------------------------------ */

/* Status of ddp_doctor_open(). Whatever it is, the program may go on, and every call may be made. */
enum {
    DDP_DOCTOR_OK = 0,
    DDP_DOCTOR_ALREADY_OPEN = 1, /* this process has a black box: it was kept, its identity updated */
    DDP_DOCTOR_DISABLED = 2,     /* DDP_DOCTOR=0 */
    DDP_DOCTOR_NO_ROOM = 3,      /* nowhere room for a black box; a marker was left if it could be */
    DDP_DOCTOR_BAD_ARGUMENT = 4  /* a pointer is NULL or misaligned, or `size` is no size */
};

/* Who this process is; -1 where it is not known yet. */
typedef struct ddp_doctor_identity {
    int32_t rank;       /* global rank */
    int32_t world_size; /* number of ranks */
    int32_t local_rank; /* rank among those on this node */
} ddp_doctor_identity;

/*
 * Makes the black box of this process, of about 1.6 MiB. Call it when the process joins the job and
 * knows its rank. `layer` names what reports: "c". The box lies in DDP_DOCTOR_BOX_DIR, else in a
 * directory of this user's in /dev/shm; where that has no room, in DDP_DOCTOR_RUN_DIR/boxes.
 *
 * The job is DDP_DOCTOR_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID or PMIX_NAMESPACE, whichever is there;
 * ranks meet in a world of their own, named by MASTER_PORT and what the launcher calls the launch.
 */
int32_t ddp_doctor_open(ddp_doctor_text layer, const ddp_doctor_identity *identity);

/* What a box is made with. Fill it with zeros first; a later version may have more fields. */
typedef struct ddp_doctor_options {
    size_t size;                  /* sizeof(ddp_doctor_options) */
    ddp_doctor_text layer;        /* none: "c" */
    ddp_doctor_text job;          /* none: as above */
    ddp_doctor_text directory;    /* none: as above */
    ddp_doctor_identity identity; /* zeros are a rank: say -1 where it is not known */
    uint32_t attempt_plus_1;      /* the n-th start of the job, from 1; 0: as the launcher counts */
} ddp_doctor_options;

/* As ddp_doctor_open(), with more to say. */
int32_t ddp_doctor_open_with(const ddp_doctor_options *options);

/* The rank became known, or another one with a new generation. What is -1 stays as it was. */
void ddp_doctor_set_identity(const ddp_doctor_identity *identity);

/* 1 while this process has a black box. */
int32_t ddp_doctor_is_open(void);

/*
 * Marks the box as closed in order. The records stay for whoever reads them. A process need not call
 * it: that it has ended is seen. ddp_doctor_open() opens the same box again.
 */
void ddp_doctor_close(void);

/* The process is about to end by itself with this status: "main returned", "_exit", … */
void ddp_doctor_exit(int32_t code, ddp_doctor_text how);

/* --- Places, texts, groups -------------------------------------------------------------------- */

/* The same with the site of the call that led there (0: unknown), for lines in functions of their own. */
uint32_t ddp_doctor_site_from(ddp_doctor_text file, ddp_doctor_text function, uint32_t line, uint32_t caller);

/*
 * Number of this line of the program, for whatever takes a site. Hot: the line gets its number once.
 */
#define DDP_DOCTOR_HERE ddp_doctor_here(__FILE__, __func__, (uint32_t)__LINE__)

/*
 * Number of a line. Both names end in a zero and live, unchanged, as long as the process: as
 * __FILE__ and __func__ do. `function` may be NULL.
 */
uint32_t ddp_doctor_here(const char *file, const char *function, uint32_t line);

/* Number of a place in the program; every call takes an entry of a table of 4096. Line 0: unknown. */
uint32_t ddp_doctor_site(ddp_doctor_text file, ddp_doctor_text function, uint32_t line);

/* Number of a text, for ddp_doctor_phase_begin(); the same text may get several numbers. */
uint32_t ddp_doctor_string(ddp_doctor_text text);

/*
 * Number of a process group with these members: global ranks in group order, the same on all of them.
 * `name` is what they share ("world", "tensor-parallel 3"), `description` is for people, `backend`
 * is what carries the calls ("nccl", "gloo", "sockets"). `epoch` counts the initialisations of the
 * world in this process, from 0. A group that was made again is registered again. 512 groups fit.
 */
uint32_t ddp_doctor_group(ddp_doctor_text name, ddp_doctor_text description, ddp_doctor_text backend,
                          uint32_t epoch, const uint32_t *members, size_t member_count);

/* A process group about to be made, by one of its members or by a process that only takes part. */
typedef struct ddp_doctor_creation {
    uint32_t op; /* NEW_GROUP or SPLIT_GROUP */
    uint32_t epoch;
    ddp_doctor_text name; /* what its makers meet by */
    ddp_doctor_text description;
    ddp_doctor_text backend;
    const uint32_t *members; /* global ranks in group order */
    size_t member_count;
    uint32_t site;
    uint32_t takes_all; /* 1: whoever makes it is known to be kept until all its members make it */
} ddp_doctor_creation;

/*
 * Records that the group is about to be made, and returns the id of the call, for
 * ddp_doctor_returned() (0: nothing was recorded). Whoever becomes a member calls ddp_doctor_group()
 * once it is made.
 */
uint64_t ddp_doctor_creating(const ddp_doctor_creation *group);

/*
 * Calls of the group fail after so many milliseconds from now on. Only a group that is given a timeout
 * is known to have one.
 */
void ddp_doctor_group_timeout(uint32_t group, uint64_t milliseconds);

/* This process left the group: nobody can expect calls of its there any more. */
void ddp_doctor_group_destroyed(uint32_t group);

/* --- Calls ------------------------------------------------------------------------------------ */

/* ddp_doctor_call.op. Variants that can meet on the wire are one op. */
enum {
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
    /* Calls that may block and are no collectives: they have no sequence number, group 0 will do. */
    DDP_DOCTOR_OP_INIT_PROCESS_GROUP = 32,
    DDP_DOCTOR_OP_NEW_GROUP = 33,
    DDP_DOCTOR_OP_DESTROY_PROCESS_GROUP = 34,
    DDP_DOCTOR_OP_MONITORED_BARRIER = 35,
    DDP_DOCTOR_OP_SPLIT_GROUP = 36,
    DDP_DOCTOR_OP_OTHER = 63
};

/* ddp_doctor_call.dtype; 0: not known, which matches everything. */
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

/* ddp_doctor_call.reduce_op; 0: not known, or there is none. */
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
    DDP_DOCTOR_ASYNC = 1,          /* the caller did not ask to wait for it */
    DDP_DOCTOR_HIDDEN = 2,         /* issued by the framework, not by a call of the user's */
    DDP_DOCTOR_P2P = 4,            /* send or receive; set by the library */
    DDP_DOCTOR_NUMEL = 8,          /* `numel` is known */
    DDP_DOCTOR_SHAPE = 16,         /* `dims[0..ndim]` is the whole shape */
    DDP_DOCTOR_ROOT = 32,          /* `root` is known */
    DDP_DOCTOR_TAG = 64,           /* `tag` is known */
    DDP_DOCTOR_BORROWED_SITE = 128 /* `site` is the main thread's place, not the caller's */
};

/* A call about to be made. 80 bytes; a program may keep one per kind of call and pass it again. */
typedef struct ddp_doctor_call {
    uint8_t op;         /* DDP_DOCTOR_OP_… */
    uint8_t dtype;      /* DDP_DOCTOR_DTYPE_… */
    uint8_t reduce_op;  /* DDP_DOCTOR_REDUCE_… */
    uint8_t ndim;       /* dimensions in `dims`, at most 10 */
    uint16_t flags;     /* DDP_DOCTOR_ASYNC | … */
    uint16_t reserved;  /* 0 */
    uint32_t group;     /* a ddp_doctor_group(); 0 for calls outside any group */
    uint32_t site;      /* DDP_DOCTOR_HERE; 0: unknown */
    uint32_t tensors;   /* number of tensors in the call */
    int32_t root;       /* group rank of the root, or of the peer of a send or receive */
    int32_t tag;        /* of a send or receive */
    uint32_t reserved2; /* 0 */
    uint64_t numel;     /* elements of the first tensor */
    uint32_t dims[10];  /* its shape */
} ddp_doctor_call;

/*
 * Records the call before it is made, gives it its sequence number in the group and returns its id
 * (0: nothing was recorded). Calls of a group must be recorded in the order in which they are made.
 * Hot.
 */
uint64_t ddp_doctor_issued(const ddp_doctor_call *call);

/* The same with site and group beside it, so that one ddp_doctor_call serves many places. Hot. */
uint64_t ddp_doctor_issued_at(const ddp_doctor_call *call, uint32_t group, uint32_t site);

/*
 * Split sizes of an all_to_all that was just issued, in elements, one for each member; `output` 0: of
 * the input. Sizes beyond 32 bits are recorded as the largest there is, lists beyond 1000 are cut.
 */
void ddp_doctor_splits(uint64_t call, int32_t output, const int64_t *sizes, size_t count);

/* The call came back to its caller; an asynchronous one may still be under way. Hot. */
void ddp_doctor_returned(uint64_t call);

/* This thread is about to wait for the call (0: for an unknown one) at that site. Hot. */
void ddp_doctor_wait_begin(uint64_t call, uint32_t site);

/* That wait is over. Hot. */
void ddp_doctor_wait_end(uint64_t call);

/* The call is known to be complete, though nobody waited for it. Hot. */
void ddp_doctor_completed(uint64_t call);

/* Nobody will wait for the call any more, and nobody did. `site` is where it was made. */
void ddp_doctor_unawaited(uint64_t call, uint32_t site);

/* --- The program ------------------------------------------------------------------------------ */

/* A training step begins. Returns its number, from 1. Hot. */
uint32_t ddp_doctor_step(void);

/* Bits of the flags of ddp_doctor_forward(). */
enum {
    DDP_DOCTOR_REPEATED = 1024,      /* the input is that of the forward before */
    DDP_DOCTOR_UNSYNCHRONISED = 2048 /* the gradients are not to be synchronised (accumulation) */
};

/*
 * The same for a step that begins with the forward of a training: at which place (0: unknown), and
 * how many batches were drawn so far where its input came from (-1: unknown). Steps of different
 * ranks are compared by it; a program that calls it does not call ddp_doctor_step().
 */
uint32_t ddp_doctor_forward(uint32_t site, int64_t batches, uint32_t flags);

/* A phase begins or ends ("checkpoint", "evaluation"); the number is one of ddp_doctor_string(). Hot. */
void ddp_doctor_phase_begin(uint32_t name);
void ddp_doctor_phase_end(uint32_t name);

/* Kinds of ddp_doctor_exception(). */
enum {
    DDP_DOCTOR_EXCEPTION_UNCAUGHT = 1,           /* nobody catches it: it ends the process */
    DDP_DOCTOR_EXCEPTION_LEFT_FORWARD = 2,       /* it left a forward pass */
    DDP_DOCTOR_EXCEPTION_LEFT_BACKWARD = 3,      /* it left a backward pass */
    DDP_DOCTOR_EXCEPTION_LEFT_COLLECTIVE = 4,    /* it left a call of the communication library */
    DDP_DOCTOR_EXCEPTION_IN_FLIGHT = 5,          /* it is being handled, and the next call is made */
    DDP_DOCTOR_EXCEPTION_UNCAUGHT_IN_THREAD = 6  /* it ends a thread other than the main one */
};

/* An exception or an error was seen: "Type: message". */
void ddp_doctor_exception(int32_t kind, ddp_doctor_text text, uint32_t site);

/* The program's input came to its end: an iterator over its data has no more. */
void ddp_doctor_input_ended(uint32_t site);

/* What ddp_doctor_spent() is about. */
enum {
    DDP_DOCTOR_SPENT_INPUT = 1,   /* the program waited for its input: a batch of its data loader */
    DDP_DOCTOR_SPENT_GARBAGE = 2, /* the run-time system collected garbage */
    DDP_DOCTOR_SPENT_BUCKETS = 3  /* the framework waited for the gradients it averages, at the end of a backward */
};

/*
 * The calling thread has just spent so many nanoseconds on what is no work of its own. Below a
 * millisecond it is not worth a record, but for the wait for gradients: each is compared with those before.
 */
void ddp_doctor_spent(int32_t on, uint64_t nanoseconds, uint32_t site);

/* A version or a setting that ranks may have to agree on, such as ("nccl", "2.27.3"). */
void ddp_doctor_setting(ddp_doctor_text name, ddp_doctor_text value);

/* Stands for a value that is not known. */
#define DDP_DOCTOR_UNKNOWN UINT64_MAX

/* What the process knows of the memory on one device; DDP_DOCTOR_UNKNOWN where it does not. */
typedef struct ddp_doctor_memory_sample {
    size_t size;        /* sizeof(ddp_doctor_memory_sample); a later version may have more fields */
    uint64_t device;    /* its number, as the process counts devices */
    uint64_t used;      /* bytes in use on it, by whomever */
    uint64_t total;     /* bytes that it has */
    uint64_t allocated; /* bytes that the framework's allocator has given to tensors */
    uint64_t reserved;  /* bytes that the framework's allocator holds */
    uint64_t peak;      /* the most bytes that it ever gave to tensors */
    uint64_t split;     /* bytes that it holds in pieces left over of blocks in use */
    uint64_t retries;   /* how often it gave back all that it held before it could get more */
    uint64_t ooms;      /* how often it could get none */
    uint64_t largest;   /* bytes of the largest piece that it holds and has given to nobody */
} ddp_doctor_memory_sample;

/* Once a second is often enough. What the process takes of the host's memory is seen from outside. */
void ddp_doctor_memory(const ddp_doctor_memory_sample *sample);

/* What ddp_doctor_parameters() says of parameters. */
enum {
    DDP_DOCTOR_PARAMETERS_LAYOUT = 1,           /* they are those of the model that need a gradient, in the order
                                                   in which ranks compare them; said when the model is made */
    DDP_DOCTOR_PARAMETERS_WITHOUT_GRADIENT = 2, /* a backward is over and these have no gradient */
    DDP_DOCTOR_PARAMETERS_COMPLETE = 3,         /* a later backward gave all of them their gradients */
    DDP_DOCTOR_PARAMETERS_READY_TWICE = 4,      /* their gradients were ready twice in one backward */
    DDP_DOCTOR_PARAMETERS_GRAPH_CHANGED = 5,    /* the graph was promised to stay the same, and did not */
    DDP_DOCTOR_PARAMETERS_OUTSIDE = 6,          /* step after step they got gradients from outside the forward
                                                   after which they are averaged, and those were used up */
    DDP_DOCTOR_PARAMETERS_NEVER_UNUSED = 7,     /* each step looks for parameters without gradient, and no step
                                                   had any; `first`: microseconds that the search takes */
    DDP_DOCTOR_PARAMETERS_USED_AT = 8           /* `site` is a line at which the forward uses the part of the model
                                                   that they are, one that got no gradients */
};

/* Parameters of a model whose gradients the ranks of a group average. */
typedef struct ddp_doctor_parameter_list {
    size_t size;           /* sizeof(ddp_doctor_parameter_list); a later version may have more fields */
    uint32_t fact;         /* one of the above */
    uint32_t group;        /* the group, by its number */
    uint32_t model;        /* the how-manieth model of that group it is in this process, from 1 */
    uint32_t first;        /* of a layout: index of the first parameter in `lines`, from 0; else see above */
    uint64_t total;        /* how many parameters it is about; `lines` may have fewer */
    ddp_doctor_text lines; /* a line for each: "float32 64,128 head.weight"; "-" where there are no sizes */
    uint32_t site;         /* the place in the program */
} ddp_doctor_parameter_list;

/*
 * Something became known of them. A long layout is said in pieces of up to 4096 bytes, before the
 * first call that the model takes: where the models of ranks differ, the first difference is found.
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
    DDP_DOCTOR_NOTE_SEVERAL_RANKS = 7
};

/* A remark about the capture itself: something of this process is not seen. */
void ddp_doctor_note(int32_t kind, ddp_doctor_text text);

/*
 * For the Python package: four of the calls above as built-in functions (METH_FASTCALL) whose
 * arguments and results are Python integers, pointers as their addresses. First comes
 * ddp_doctor_py_use() with the addresses of PyLong_AsUnsignedLongLongMask() and
 * PyLong_FromUnsignedLongLong().
 */
void ddp_doctor_py_use(void *to_number, void *from_number);
void *ddp_doctor_py_issued_at(void *module, void *const *arguments, intptr_t count);
void *ddp_doctor_py_returned(void *module, void *const *arguments, intptr_t count);
void *ddp_doctor_py_wait_begin(void *module, void *const *arguments, intptr_t count);
void *ddp_doctor_py_wait_end(void *module, void *const *arguments, intptr_t count);

#ifdef __cplusplus
}
#endif

#endif /* DDP_DOCTOR_H */
