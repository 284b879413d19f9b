/* A process that keeps readers of its environment, its maps and its arguments waiting for ever.
 *
 * unreadable LIBRARY [DEVICE]: maps LIBRARY, so that it seems to be a rank. Mounts a FUSE file system by DEVICE, in a user
 * namespace of its own, whose one file never delivers a page. One thread reads that page, which keeps the memory map
 * locked, and another one waits to change the map. Without DEVICE it is an ordinary process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE (1 << 20)

static char *page;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void put(const char *file, const char *text) {
    int fd = open(file, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail(file);
    close(fd);
}

/* Answers everything but reads. */
static void serve(int device) {
    static char request[1 << 18];
    for (;;) {
        if (read(device, request, sizeof request) < 0)
            continue;
        struct fuse_in_header head;
        memcpy(&head, request, sizeof head);
        struct {
            struct fuse_out_header head;
            union {
                struct fuse_init_out init;
                struct fuse_entry_out entry;
                struct fuse_attr_out attr;
                struct fuse_open_out open;
            } body;
        } answer;
        memset(&answer, 0, sizeof answer);
        size_t length = 0;
        switch (head.opcode) {
        case FUSE_INIT:
            answer.body.init.major = 7;
            answer.body.init.minor = 31;
            answer.body.init.max_write = 4096;
            length = sizeof answer.body.init;
            break;
        case FUSE_LOOKUP:
            answer.body.entry.nodeid = 2;
            answer.body.entry.attr_valid = answer.body.entry.entry_valid = 1000;
            answer.body.entry.attr.ino = 2;
            answer.body.entry.attr.mode = S_IFREG | 0777;
            answer.body.entry.attr.size = SIZE;
            answer.body.entry.attr.nlink = 1;
            length = sizeof answer.body.entry;
            break;
        case FUSE_GETATTR:
            answer.body.attr.attr_valid = 1000;
            answer.body.attr.attr.ino = head.nodeid;
            answer.body.attr.attr.mode = (head.nodeid == 1 ? S_IFDIR : S_IFREG) | 0777;
            answer.body.attr.attr.size = SIZE;
            answer.body.attr.attr.nlink = 1;
            length = sizeof answer.body.attr;
            break;
        case FUSE_OPEN:
            length = sizeof answer.body.open;
            break;
        case FUSE_READ:
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT:
            continue;
        default:
            answer.head.error = -38;
        }
        answer.head.unique = head.unique;
        answer.head.len = (unsigned)(sizeof answer.head + length);
        if (write(device, &answer, answer.head.len) < 0)
            perror("answer");
    }
}

static void *read_page(void *unused) {
    char byte;
    /* The stack of the other thread is mapped first. */
    sleep(1);
    int memory = open("/proc/self/mem", O_RDONLY);
    if (pread(memory, &byte, 1, (off_t)(size_t)page) < 0)
        perror("page");
    return unused;
}

static void *change_map(void *unused) {
    sleep(2);
    mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return unused;
}

static void lock_map(const char *path) {
    char map[64], options[128];
    unsigned user = getuid(), group = getgid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        fail("unshare");
    put("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", user, user);
    put("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "%u %u 1", group, group);
    put("/proc/self/gid_map", map);
    int device = open(path, O_RDWR);
    if (device < 0)
        fail(path);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", device, user, group);
    mkdir("mount", 0755);
    if (mount("x", "mount", "fuse", MS_NOSUID | MS_NODEV, options))
        fail("mount");
    if (fork() == 0)
        serve(device);
    close(device);
    int file = open("mount/file", O_RDONLY);
    if (file < 0)
        fail("mount/file");
    page = mmap(0, SIZE, PROT_READ, MAP_SHARED, file, 0);
    pthread_t threads[2];
    pthread_create(&threads[0], 0, read_page, 0);
    pthread_create(&threads[1], 0, change_map, 0);
    sleep(3);
}

int main(int count, char **arguments) {
    int library = count > 1 ? open(arguments[1], O_RDONLY) : -1;
    if (library < 0)
        fail("library");
    mmap(0, 4096, PROT_READ, MAP_PRIVATE, library, 0);
    if (count > 2)
        lock_map(arguments[2]);
    /* Nothing here may need memory: the map is locked. */
    if (write(1, "ready\n", 6) < 0)
        return 1;
    for (;;)
        pause();
}
