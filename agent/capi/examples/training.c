/*
 * A training loop in C that records its collectives: several processes that reduce their gradients
 * over sockets.
 *
 *   cc -o training training.c -I ../include -L <folder of libddp_doctor.so> -lddp_doctor
 *   ddp-doctor run -- ./training 4                   healthy: prints only its own checksums
 *   ddp-doctor run -- ./training 4 early-exit        rank 1 has fewer batches than the others
 *   ddp-doctor run -- ./training 4 barrier           rank 2 calls a barrier while the others reduce
 *   ddp-doctor run -- ./training 4 root              rank 3 broadcasts from a different root
 *
 * Without `run`, with a running `ddp-doctor coordinator`:
 *
 *   DDP_DOCTOR_COORDINATOR=127.0.0.1:7077 ./training 4 barrier
 */
#define _POSIX_C_SOURCE 200809L

#include <ddp_doctor.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 64, STEPS = 6, FAULTY_STEP = 4, PARAMETERS = 8 };

/* --- Transport --------------------------------------------------------------------------------- */

/* Request of a rank to the fabric, which replies once all ranks have sent the same request. */
struct message {
    int32_t number; /* 1-based number of the call */
    int32_t op;
    int32_t root;
    float values[PARAMETERS];
};

static int fabric;   /* socket of this rank */
static int32_t calls; /* number of calls made */

static void exchange(int op, int root, float *values)
{
    struct message message;
    memset(&message, 0, sizeof message);
    message.number = ++calls;
    message.op = op;
    message.root = root;
    memcpy(message.values, values, sizeof message.values);
    if (write(fabric, &message, sizeof message) != sizeof message ||
        read(fabric, &message, sizeof message) != sizeof message)
        exit(1); /* the parent has exited */
    memcpy(values, message.values, sizeof message.values);
}

/* Serves the sockets of all ranks until they are closed. */
static void serve(const int *sockets, int ranks)
{
    struct message asked[MAX_RANKS];
    int waits[MAX_RANKS] = {0}, open = ranks;
    struct pollfd polled[MAX_RANKS];
    for (int i = 0; i < ranks; ++i) {
        polled[i].fd = sockets[i];
        polled[i].events = POLLIN;
    }
    while (open > 0 && poll(polled, (nfds_t)ranks, -1) >= 0) {
        int alike = 0;
        for (int i = 0; i < ranks; ++i) {
            if (polled[i].fd < 0 || polled[i].revents == 0)
                continue;
            if (read(polled[i].fd, &asked[i], sizeof asked[i]) == (ssize_t)sizeof asked[i]) {
                waits[i] = 1;
            } else {
                polled[i].fd = -1;
                waits[i] = 0;
                --open;
            }
        }
        for (int i = 0; i < ranks; ++i)
            alike += waits[i] && waits[0] && asked[i].number == asked[0].number &&
                     asked[i].op == asked[0].op && asked[i].root == asked[0].root;
        if (alike < ranks)
            continue;
        struct message answer = asked[0];
        for (int k = 0; k < PARAMETERS; ++k) {
            answer.values[k] = 0;
            for (int i = 0; i < ranks; ++i)
                answer.values[k] += asked[i].values[k] / (float)ranks;
        }
        for (int i = 0; i < ranks; ++i) {
            waits[i] = 0;
            if (write(polled[i].fd, &answer, sizeof answer) < 0)
                continue; /* poll() reports the closed socket */
        }
    }
}

/* --- Recorded collectives ---------------------------------------------------------------------- */

static uint32_t world; /* group of all ranks */

static void collective(int op, int reduce_op, int root, float *values, uint32_t site)
{
    ddp_doctor_call call;
    memset(&call, 0, sizeof call);
    call.op = (uint8_t)op;
    call.group = world;
    call.site = site;
    if (op != DDP_DOCTOR_OP_BARRIER) {
        call.dtype = DDP_DOCTOR_DTYPE_FLOAT32;
        call.reduce_op = (uint8_t)reduce_op;
        call.flags = DDP_DOCTOR_NUMEL | DDP_DOCTOR_SHAPE;
        call.tensors = 1;
        call.numel = PARAMETERS;
        call.ndim = 1;
        call.dims[0] = PARAMETERS;
    }
    if (root >= 0) {
        call.flags |= DDP_DOCTOR_ROOT;
        call.root = root;
    }
    /* Recorded before the call, so that a call that never returns is known. */
    uint64_t id = ddp_doctor_issued(&call);
    exchange(op, root, values);
    ddp_doctor_returned(id);
}

/* Macros, so that the recorded line is the caller's. */
#define all_reduce(values) \
    collective(DDP_DOCTOR_OP_ALL_REDUCE, DDP_DOCTOR_REDUCE_AVG, -1, values, DDP_DOCTOR_HERE)
#define broadcast(values, root) \
    collective(DDP_DOCTOR_OP_BROADCAST, 0, root, values, DDP_DOCTOR_HERE)
#define barrier(values) collective(DDP_DOCTOR_OP_BARRIER, 0, -1, values, DDP_DOCTOR_HERE)

/* --- Training --------------------------------------------------------------------------------- */

static void compute(int rank, const float *weights, float *gradients)
{
    struct timespec a_while = {0, 20 * 1000 * 1000};
    nanosleep(&a_while, NULL);
    for (int k = 0; k < PARAMETERS; ++k)
        gradients[k] = (float)(rank + k) + weights[k];
}

/* FNV-1a */
static unsigned checksum(const float *values)
{
    const unsigned char *bytes = (const unsigned char *)values;
    unsigned sum = 2166136261u;
    for (size_t i = 0; i < PARAMETERS * sizeof *values; ++i)
        sum = (sum ^ bytes[i]) * 16777619u;
    return sum;
}

static int train(int rank, int ranks, const char *bug)
{
    ddp_doctor_identity identity = {rank, ranks, rank};
    uint32_t members[MAX_RANKS];
    float weights[PARAMETERS] = {0}, gradients[PARAMETERS];
    int batches = STEPS;

    ddp_doctor_open(ddp_doctor_text_of("c"), &identity);
    ddp_doctor_setting(ddp_doctor_text_of("fabric"), ddp_doctor_text_of("sockets 1"));
    for (int i = 0; i < ranks; ++i)
        members[i] = (uint32_t)i;
    world = ddp_doctor_group(ddp_doctor_text_of("world"), ddp_doctor_text_of("all ranks"),
                             ddp_doctor_text_of("sockets"), 0, members, (size_t)ranks);

    if (rank == 3 && strcmp(bug, "root") == 0)
        broadcast(weights, 1); /* BUG root: rank 3 */
    else
        broadcast(weights, 0); /* BUG root: the others */
    if (rank == 1 && strcmp(bug, "early-exit") == 0)
        batches = FAULTY_STEP - 1;

    for (int step = 1; step <= batches; ++step) {
        ddp_doctor_step();
        compute(rank, weights, gradients);
        if (rank == 2 && step == FAULTY_STEP && strcmp(bug, "barrier") == 0)
            barrier(gradients); /* BUG barrier: rank 2 */
        all_reduce(gradients); /* BUG barrier, early-exit: the others */
        for (int k = 0; k < PARAMETERS; ++k)
            weights[k] -= 0.1f * gradients[k];
    }
    ddp_doctor_input_ended(DDP_DOCTOR_HERE);
    printf("rank %d: checksum of the weights %08x\n", rank, checksum(weights));
    ddp_doctor_exit(0, ddp_doctor_text_of("main returned"));
    return 0;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 4, failed = 0, status;
    const char *bug = argc > 2 ? argv[2] : "";
    int ours[MAX_RANKS];
    if (ranks < 1 || ranks > MAX_RANKS) {
        fprintf(stderr, "usage: %s RANKS [early-exit|barrier|root]\n", argv[0]);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    for (int rank = 0; rank < ranks; ++rank) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
            return 1;
        switch (fork()) {
        case -1:
            return 1;
        case 0:
            for (int i = 0; i < rank; ++i)
                close(ours[i]);
            close(pair[0]);
            fabric = pair[1];
            return train(rank, ranks, bug);
        default:
            close(pair[1]);
            ours[rank] = pair[0];
        }
    }
    serve(ours, ranks);
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}
