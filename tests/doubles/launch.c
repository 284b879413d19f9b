/*
 * Starts the ranks of a program on this machine, like a launcher, and waits for all of them:
 *
 *   launch RANKS PROGRAM [ARGUMENT…]
 *
 * Its exit status is that of the first rank that failed (128 + N if signal N ended it), otherwise 0.
 */
#define _GNU_SOURCE

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static void set(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *at)
{
    (void)status, (void)kind, (void)at;
    return remove(path);
}

int main(int argc, char **argv)
{
    char folder[4096];
    const char *above = getenv("TMPDIR");
    int ranks = argc > 2 ? atoi(argv[1]) : 0, first = 0, status;
    if (ranks < 1) {
        fprintf(stderr, "usage: %s RANKS PROGRAM [ARGUMENT...]\n", argv[0]);
        return 2;
    }
    snprintf(folder, sizeof folder, "%.4000s/job-XXXXXX", above != NULL ? above : "/tmp");
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 1;
    }
    setenv("JOB_DIR", folder, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set("MASTER_PORT", 20000 + getpid() % 20000); /* not in use: it identifies the launch */
    set("WORLD_SIZE", ranks);
    set("LOCAL_WORLD_SIZE", ranks);
    for (int rank = 0; rank < ranks; ++rank) {
        set("RANK", rank);
        set("LOCAL_RANK", rank);
        switch (fork()) {
        case -1:
            perror("fork");
            return 1;
        case 0:
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* the ranks end with the launcher */
            execvp(argv[2], argv + 2);
            perror(argv[2]);
            _exit(127);
        }
    }
    while (wait(&status) > 0) {
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (first == 0)
            first = code;
    }
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return first;
}
