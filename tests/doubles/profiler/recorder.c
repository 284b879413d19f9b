/*
 * A profiler plugin that prints the events it receives, to test the host. It uses offsets from NCCL's debug
 * information instead of the host's declarations. RECORDER_MASK is the mask of requested events.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t last; /* number of the latest event */

#define U8(offset) (*((const uint8_t *)descriptor + (offset)))
#define I32(offset) (*(const int32_t *)((const char *)descriptor + (offset)))
#define U64(offset) (*(const uint64_t *)((const char *)descriptor + (offset)))
#define TEXT(offset) (*(const char *const *)((const char *)descriptor + (offset)))

static int begin(void **context, int *mask, const char *name, int ranks, int rank)
{
    const char *asked = getenv("RECORDER_MASK");
    *context = &last;
    *mask = asked != NULL ? atoi(asked) : 0;
    fprintf(stderr, "init %s %d/%d\n", name, rank, ranks);
    return 0;
}

static int init_4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank, void *log)
{
    (void)hash, (void)nodes, (void)log;
    return begin(context, mask, name, ranks, rank);
}

static int init_5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, void *log)
{
    (void)id, (void)nodes, (void)log;
    return begin(context, mask, name, ranks, rank);
}

static int start(void **handle, const void *descriptor, int version)
{
    unsigned type = version < 5 ? U8(0) : (unsigned)U64(0);
    pthread_mutex_lock(&lock);
    *handle = (void *)++last;
    fprintf(stderr, "%lu in %lu: ", (unsigned long)last, (unsigned long)U64(8));
    switch (type) {
    case 1: fprintf(stderr, "Group"); break;
    case 2:
        fprintf(stderr, "Coll %s #%lu count %lu root %d %s %u/%u %s %s", TEXT(32), (unsigned long)U64(24),
                (unsigned long)U64(56), I32(64), TEXT(72), U8(80), U8(81), TEXT(88), TEXT(96));
        if (version >= 5)
            fprintf(stderr, " group %lu", (unsigned long)U64(104));
        if (version >= 7)
            fprintf(stderr, " %s symmetric %u tag %lu", TEXT(112), U8(120), (unsigned long)U64(128));
        break;
    case 4:
        fprintf(stderr, "P2p %s count %lu %s peer %d", TEXT(24), (unsigned long)U64(48), TEXT(40), I32(56));
        if (version >= 5)
            fprintf(stderr, " channels %u group %lu", U8(60), (unsigned long)U64(64));
        break;
    case 8: fprintf(stderr, "ProxyOp channel %u peer %d steps %d chunk %d send %d", U8(28), I32(32), I32(36), I32(40), I32(44)); break;
    case 16: fprintf(stderr, "ProxyStep %d", I32(24)); break;
    case 32: fprintf(stderr, "ProxyCtrl"); break;
    case 64: fprintf(stderr, "KernelCh %u timer %d", U8(24), U64(32) > 0); break;
    case 128: fprintf(stderr, "NetPlugin %lx", (unsigned long)U64(24)); break;
    case 256: fprintf(stderr, "GroupApi captured %u depth %d", U8(24), I32(28)); break;
    case 512: fprintf(stderr, "CollApi %s count %lu %s root %d captured %u", TEXT(24), (unsigned long)U64(32), TEXT(40), I32(48), U8(64)); break;
    case 1024: fprintf(stderr, "P2pApi %s count %lu %s captured %u", TEXT(24), (unsigned long)U64(32), TEXT(40), U8(56)); break;
    case 2048: fprintf(stderr, "KernelLaunch"); break;
    case 4096: fprintf(stderr, "CeColl %s #%lu count %lu %s %s batches %d", TEXT(32), (unsigned long)U64(24), (unsigned long)U64(56), TEXT(72), TEXT(80), I32(96)); break;
    case 32768: fprintf(stderr, "KernelPhase %u %s", U8(25), TEXT(32)); break;
    default: fprintf(stderr, "unknown %u", type);
    }
    fprintf(stderr, "%s\n", gettid() == getpid() ? "" : " (another thread)");
    pthread_mutex_unlock(&lock);
    return 0;
}

static int start_4(void *context, void **handle, const void *descriptor) { (void)context; return start(handle, descriptor, 4); }
static int start_5(void *context, void **handle, const void *descriptor) { (void)context; return start(handle, descriptor, 5); }
static int start_6(void *context, void **handle, const void *descriptor) { (void)context; return start(handle, descriptor, 6); }
static int start_7(void *context, void **handle, const void *descriptor) { (void)context; return start(handle, descriptor, 7); }

static int stop(void *handle)
{
    fprintf(stderr, "%lu ends\n", (unsigned long)(uintptr_t)handle);
    return 0;
}

static int record(void *handle, int state, const uint64_t *args)
{
    fprintf(stderr, "%lu state %d%s\n", (unsigned long)(uintptr_t)handle, state, args != NULL ? " with arguments" : "");
    return 0;
}

static int finalize(void *context)
{
    fprintf(stderr, "finalize%s\n", context == &last ? "" : " of what was not initialized");
    return 0;
}

struct plugin { const char *name; void *init, *start, *stop, *record, *finalize; };

/* Function pointers as data, as NCCL reads them. */
#define PLUGIN(version, init)                                                                        \
    struct plugin ncclProfiler_v##version = {"recorder", (void *)init, (void *)start_##version,      \
                                             (void *)stop, (void *)record, (void *)finalize}
PLUGIN(4, init_4);
PLUGIN(5, init_5);
PLUGIN(6, init_5);
PLUGIN(7, init_5);
