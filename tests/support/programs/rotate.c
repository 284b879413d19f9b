/* Two ranks that make the given number of calls together; then rank 1 exits, and rank 0 waits for it in another call
 * for ever. With a second argument, both exit. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ddp_doctor.h"

static void rank(uint32_t number, int calls, int ends, pthread_barrier_t *barrier)
{
    ddp_doctor_identity identity = {(int32_t)number, 2, (int32_t)number};
    struct timespec pause_between = {0, 200 * 1000};
    uint32_t members[2] = {0, 1};
    ddp_doctor_call call;

    ddp_doctor_open(ddp_doctor_text_of("c"), &identity);
    memset(&call, 0, sizeof call);
    call.op = DDP_DOCTOR_OP_BARRIER;
    call.group = ddp_doctor_group(ddp_doctor_text_of("world"), ddp_doctor_text_of("all ranks"),
                                  ddp_doctor_text_of("none"), 0, members, 2);
    for (int i = 0; i < calls; ++i) {
        uint64_t id = ddp_doctor_issued(&call);
        pthread_barrier_wait(barrier);
        ddp_doctor_returned(id);
        nanosleep(&pause_between, NULL);
    }
    printf("rank %u: %d calls\n", number, calls);
    fflush(stdout);
    if (!ends && number == 0) {
        ddp_doctor_issued(&call);
        for (;;)
            pause();
    }
    ddp_doctor_exit(0, ddp_doctor_text_of("main returned"));
    exit(0);
}

int main(int argc, char **argv)
{
    pthread_barrierattr_t shared;
    pthread_barrier_t *barrier = mmap(NULL, sizeof *barrier, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int calls = argc > 1 ? atoi(argv[1]) : 0;

    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(barrier, &shared, 2);
    for (uint32_t number = 0; number < 2; ++number)
        if (fork() == 0)
            rank(number, calls, argc > 2, barrier);
    while (wait(NULL) > 0)
        ;
    return 0;
}
