/*
 * ddp-doctor: report the collectives of a training process.
 *
 * Link with -lddp_doctor. Every call is safe from any thread, blocks on nothing, never aborts and
 * never unwinds; before ddp_doctor_open(), after ddp_doctor_close() and in a forked child each of
 * them does nothing and returns 0. Text is UTF-8 with a length; it is copied.
 *
 * The numbers of ops, types and kinds are those of ddpdoctor/v1/vocabulary.proto.
 */
#ifndef DDP_DOCTOR_H
#define DDP_DOCTOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface; a program may compare it with ddp_doctor_abi_version(). */
#define DDP_DOCTOR_ABI_VERSION 1u

/* Text that does not end in a zero. `data` may be NULL when `length` is 0. */
typedef struct ddp_doctor_text {
    const char *data;
    size_t length;
} ddp_doctor_text;

/* Status of ddp_doctor_open(). */
enum {
    DDP_DOCTOR_OK = 0,
    DDP_DOCTOR_ALREADY_OPEN = 1,  /* this process has a black box: it was kept, its identity updated */
    DDP_DOCTOR_DISABLED = 2,      /* DDP_DOCTOR=0 */
    DDP_DOCTOR_NO_ROOM = 3,       /* nowhere room for a black box; a marker was left if it could be */
    DDP_DOCTOR_BAD_ARGUMENT = 4
};

/* Who this process is; -1 where it is not known yet. */
typedef struct ddp_doctor_identity {
    int32_t rank;
    int32_t world_size;
    int32_t local_rank;
} ddp_doctor_identity;

uint32_t ddp_doctor_abi_version(void);

/*
 * Makes the black box of this process. `layer` names what reports ("c10d", "c"). The place is
 * DDP_DOCTOR_BOX_DIR, else a directory of this user's in /dev/shm; where that has no room,
 * DDP_DOCTOR_RUN_DIR/boxes.
 */
int32_t ddp_doctor_open(ddp_doctor_text layer, const ddp_doctor_identity *identity);

/* The rank became known, or another one with a new generation. */
void ddp_doctor_set_identity(const ddp_doctor_identity *identity);

/* 1 while this process has a black box. */
int32_t ddp_doctor_is_open(void);

/* Marks the box as closed in order. The records stay for whoever reads them. */
void ddp_doctor_close(void);

/* Number of a text, for ddp_doctor_phase_begin(); the same text may get several numbers. 0: no room. */
uint32_t ddp_doctor_string(ddp_doctor_text text);

/* Number of a place in the program. 0: no room. Keep it: every call takes an entry of a table. */
uint32_t ddp_doctor_site(ddp_doctor_text file, ddp_doctor_text function, uint32_t line);

/*
 * Number of a process group with these members (global ranks in group order). `epoch` counts the
 * initialisations of the world in this process, from 0. 0: no room.
 */
uint32_t ddp_doctor_group(ddp_doctor_text name, ddp_doctor_text description, ddp_doctor_text backend,
                          uint32_t epoch, const uint32_t *members, size_t member_count);

/* A process group about to be made, by one of its members or by a process that only takes part. */
typedef struct ddp_doctor_creation {
    uint32_t op; /* NEW_GROUP or SPLIT_GROUP */
    uint32_t epoch;
    ddp_doctor_text name; /* what its makers meet by */
    ddp_doctor_text description;
    /* Empty where it is not known to keep whoever makes the group until all its members do. */
    ddp_doctor_text backend;
    const uint32_t *members; /* global ranks in group order */
    size_t member_count;
    uint32_t site;
    uint32_t reserved;
} ddp_doctor_creation;

/*
 * Records that the group is about to be made, and returns the id of the call, for
 * ddp_doctor_returned() (0: nothing was recorded). Whoever becomes a member calls ddp_doctor_group()
 * once it is made.
 */
uint64_t ddp_doctor_creating(const ddp_doctor_creation *group);

/* This process left the group. */
void ddp_doctor_group_destroyed(uint32_t group);

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
    uint8_t op;
    uint8_t dtype;
    uint8_t reduce_op;
    uint8_t ndim;
    uint16_t flags;
    uint16_t reserved;
    uint32_t group;   /* 0 for calls outside any group: init_process_group, … */
    uint32_t site;
    uint32_t tensors; /* number of tensors in the call */
    int32_t root;     /* group rank of the root or of the peer */
    int32_t tag;
    uint32_t reserved2;
    uint64_t numel;   /* elements of the first tensor */
    uint32_t dims[10];
} ddp_doctor_call;

/*
 * Records the call before it is made, gives it its sequence number in the group and returns its id
 * (0: nothing was recorded).
 */
uint64_t ddp_doctor_issued(const ddp_doctor_call *call);

/* The same with site and group beside it, so that one ddp_doctor_call serves many places. */
uint64_t ddp_doctor_issued_at(const ddp_doctor_call *call, uint32_t group, uint32_t site);

/* Split sizes of an all_to_all that was issued; `output` 0: of the input. Long lists are cut. */
void ddp_doctor_splits(uint64_t call, int32_t output, const int64_t *sizes, size_t count);

/* The call came back to its caller. */
void ddp_doctor_returned(uint64_t call);

/* This thread is about to wait for the call (0: for an unknown one) at that place (0: unknown). */
void ddp_doctor_wait_begin(uint64_t call, uint32_t site);
void ddp_doctor_wait_end(uint64_t call);

/* The call is complete. */
void ddp_doctor_completed(uint64_t call);

/* Nobody will wait for the call any more, and nobody did. `site` is where it was made. */
void ddp_doctor_unawaited(uint64_t call, uint32_t site);

/* A training step begins. Returns its number, from 1. */
uint32_t ddp_doctor_step(void);

/* A phase begins or ends; the number is one of ddp_doctor_string(). */
void ddp_doctor_phase_begin(uint32_t name);
void ddp_doctor_phase_end(uint32_t name);

/* An exception was seen: "Type: message". `kind` is an ExceptionKind. */
void ddp_doctor_exception(int32_t kind, ddp_doctor_text text, uint32_t site);

/* The program's input came to its end: an iterator over its data has no more. */
void ddp_doctor_input_ended(uint32_t site);

/* The process is about to end by itself: "main returned", "os._exit", … */
void ddp_doctor_exit(int32_t code, ddp_doctor_text how);

/* A remark about the capture itself. `kind` is a NoteKind. */
void ddp_doctor_note(int32_t kind, ddp_doctor_text text);

#ifdef __cplusplus
}
#endif

#endif /* DDP_DOCTOR_H */
