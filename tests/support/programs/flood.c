/* A rank that makes the given number of calls when the file `flood1` appears, and then creates the file `flooded1`;
 * likewise 2 for a second number. When the file `stop` appears, it prints a checksum of its data and exits. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ddp_doctor.h"

static void wait_for(const char *file)
{
    struct timespec a_while = {0, 10 * 1000 * 1000};
    while (access(file, F_OK) != 0)
        nanosleep(&a_while, NULL);
}

int main(int argc, char **argv)
{
    ddp_doctor_identity identity = {0, 1, 0};
    uint32_t members[1] = {0}, world;
    ddp_doctor_call call;
    unsigned data = 1;
    int calls = 0;
    char file[32];

    ddp_doctor_open(ddp_doctor_text_of("c"), &identity);
    world = ddp_doctor_group(ddp_doctor_text_of("world"), ddp_doctor_text_of("all ranks"),
                             ddp_doctor_text_of("none"), 0, members, 1);
    memset(&call, 0, sizeof call);
    call.op = DDP_DOCTOR_OP_BARRIER;
    call.group = world;
    ddp_doctor_returned(ddp_doctor_issued(&call));
    for (int argument = 1; argument < argc; ++argument) {
        snprintf(file, sizeof file, "flood%d", argument);
        wait_for(file);
        for (int i = atoi(argv[argument]); i > 0; --i, ++calls) {
            uint64_t id = ddp_doctor_issued(&call);
            data = data * 1664525u + 1013904223u;
            ddp_doctor_returned(id);
        }
        snprintf(file, sizeof file, "flooded%d", argument);
        close(open(file, O_CREAT | O_WRONLY, 0600));
    }
    wait_for("stop");
    printf("rank 0: %d calls, checksum %08x\n", calls, data);
    ddp_doctor_exit(0, ddp_doctor_text_of("main returned"));
    return 0;
}
