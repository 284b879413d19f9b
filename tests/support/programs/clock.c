// Sets the clock of a process ahead by CLOCK_AHEAD seconds, for tests with hosts whose clocks differ; if CLOCK_SINCE
// is set, only once the file of that path exists.

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int status = (int)syscall(SYS_clock_gettime, clock, time);
    const char *ahead = getenv("CLOCK_AHEAD"), *since = getenv("CLOCK_SINCE");
    if (status == 0 && clock == CLOCK_REALTIME && ahead != NULL && (since == NULL || access(since, F_OK) == 0))
        time->tv_sec += atol(ahead);
    return status;
}
