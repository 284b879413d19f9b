// Executes a command on what looks like a kernel without pidfds: pidfd_open and pidfd_send_signal fail with the error
// number that is the first argument.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PIDFD_SEND_SIGNAL 424
#define PIDFD_OPEN 434

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s ERRNO COMMAND [ARGUMENTS]\n", argv[0]);
        return 2;
    }
    unsigned error = (unsigned)atoi(argv[1]) & SECCOMP_RET_DATA;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PIDFD_SEND_SIGNAL, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PIDFD_OPEN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        perror("seccomp");
        return 2;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
