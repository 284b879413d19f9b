// Sets the clock of a process ahead by CLOCK_AHEAD seconds, for tests with hosts whose clocks differ.

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int status = (int)syscall(SYS_clock_gettime, clock, time);
    const char *ahead = getenv("CLOCK_AHEAD");
    if (status == 0 && clock == CLOCK_REALTIME && ahead != NULL)
        time->tv_sec += atol(ahead);
    return status;
}
