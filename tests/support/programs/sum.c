/* A rank of a job on several hosts, which sums a number over TCP at each step.
 *
 *     sum STEPS [FAULT]
 *
 * RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are as for torch.distributed; a step takes SUM_PAUSE_MS, 5 by default. Rank 0 receives the number of each
 * rank and returns the sum. From step FAULT on, the last rank is in a barrier of its own, and the job hangs. If
 * SUM_HOLD names a file, the ranks make further calls after half of the steps until rank 0 sees it, which do not
 * change the result. */

#define _GNU_SOURCE
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ddp_doctor.h"

#define MAX_RANKS 64

static int number(const char *name)
{
    const char *text = getenv(name);
    if (text == NULL) {
        fprintf(stderr, "%s is not set\n", name);
        exit(2);
    }
    return atoi(text);
}

static void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Sockets of ranks 1 and up, in rank 0; the socket to rank 0, in the others. */
static int peers[MAX_RANKS];

static void meet(int rank, int size)
{
    if (rank == 0) {
        int listener = socket(AF_INET6, SOCK_STREAM, 0), on = 1;
        struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(number("MASTER_PORT"))};
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listener, (struct sockaddr *)&any, sizeof any) != 0 || listen(listener, size) != 0)
            fail("listen");
        for (int i = 1; i < size; ++i) {
            int32_t peer;
            int connection = accept(listener, NULL, NULL);
            if (connection < 0 || recv(connection, &peer, sizeof peer, MSG_WAITALL) != sizeof peer)
                fail("accept");
            peers[peer] = connection;
        }
        return;
    }
    for (int attempt = 0; attempt < 600; ++attempt, pause_ms(50)) {
        struct addrinfo *address, hints = {.ai_socktype = SOCK_STREAM};
        int32_t self = rank;
        if (getaddrinfo(getenv("MASTER_ADDR"), getenv("MASTER_PORT"), &hints, &address) != 0)
            continue;
        peers[0] = socket(address->ai_family, SOCK_STREAM, 0);
        if (connect(peers[0], address->ai_addr, address->ai_addrlen) == 0
            && send(peers[0], &self, sizeof self, 0) == sizeof self)
            return;
        close(peers[0]);
    }
    fail("connect");
}

static void receive(int peer, uint64_t *value)
{
    if (recv(peer, value, sizeof *value, MSG_WAITALL) != sizeof *value)
        fail("recv");
}

static uint64_t sum(int rank, int size, uint64_t value)
{
    if (rank != 0) {
        send(peers[0], &value, sizeof value, 0);
        receive(peers[0], &value);
        return value;
    }
    for (int i = 1; i < size; ++i) {
        uint64_t other;
        receive(peers[i], &other);
        value += other;
    }
    for (int i = 1; i < size; ++i)
        send(peers[i], &value, sizeof value, 0);
    return value;
}

/* A sum of the value, as a recorded call. */
static uint64_t step(ddp_doctor_call *call, int rank, int size, uint64_t value)
{
    const char *pause = getenv("SUM_PAUSE_MS");
    uint64_t id;
    pause_ms(pause ? atoi(pause) : 5);
    id = ddp_doctor_issued(call);
    value = sum(rank, size, value);
    ddp_doctor_returned(id);
    return value;
}

int main(int argc, char **argv)
{
    const char *hold = getenv("SUM_HOLD");
    int steps = argc > 1 ? atoi(argv[1]) : 100, fault = argc > 2 ? atoi(argv[2]) : -1;
    int rank = number("RANK"), size = number("WORLD_SIZE");
    ddp_doctor_identity identity = {rank, size, 0};
    uint32_t members[MAX_RANKS], world;
    uint64_t value = 1;
    ddp_doctor_call call;

    for (int i = 0; i < size; ++i)
        members[i] = i;
    ddp_doctor_open(ddp_doctor_text_of("c"), &identity);
    world = ddp_doctor_group(ddp_doctor_text_of("world"), ddp_doctor_text_of("all ranks"), ddp_doctor_text_of("tcp"), 0,
                             members, size);
    memset(&call, 0, sizeof call);
    call.op = DDP_DOCTOR_OP_ALL_REDUCE;
    call.group = world;
    meet(rank, size);
    for (int i = 0; i < steps; ++i) {
        uint64_t holds = hold != NULL && i == steps / 2;
        ddp_doctor_step();
        if (i == fault && rank == size - 1) {
            uint64_t never;
            call.op = DDP_DOCTOR_OP_BARRIER;
            call.site = DDP_DOCTOR_HERE;
            ddp_doctor_issued(&call);
            receive(peers[0], &never);
        }
        call.site = DDP_DOCTOR_HERE;
        while (holds)
            holds = step(&call, rank, size, rank == 0 && access(hold, F_OK) != 0);
        value = step(&call, rank, size, value % 1000);
    }
    printf("rank %d: %llu\n", rank, (unsigned long long)value);
    ddp_doctor_exit(0, ddp_doctor_text_of("main returned"));
    return 0;
}
