/*
 * Creates a communicator, whose calls are hooked, and then reports one to the plugin as NCCL does: the plugin
 * must request no events. hooks_and_profiler PLUGIN
 */
#include <rank.h>

#include "../../doubles/profiler/profiler.h"
#include <dlfcn.h>

int main(int argc, char **argv)
{
    ncclComm_t comm;
    ncclUniqueId id;
    void *context = &comm, *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int mask = -1;
    if (library == NULL)
        FAIL("%s", argc > 1 ? dlerror() : "no plugin");
    plugin *plugged = dlsym(library, "ncclProfiler_v7");
    EXPECT(plugged != NULL);
    setenv("RANK", "0", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    begin();
    NCCL(ncclGetUniqueId(&id));
    NCCL(ncclCommInitRank(&comm, 1, id, 0));
    EXPECT(plugged->init_5(&context, 7, &mask, "world", 1, 1, 0, NULL) == 0);
    printf("asks for %d\n", mask);
    EXPECT(plugged->finalize(context) == 0);
    leave(comm);
    return 0;
}
