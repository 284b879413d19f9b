/* Loads a second NCCL by its path, then creates a communicator of the linked one: second_library LIBRARY */
#include <rank.h>

#include <dlfcn.h>

int main(int argc, char **argv)
{
    ncclComm_t comm;
    ncclUniqueId id;
    CUcontext context;
    if (argc < 2 || dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) == NULL)
        FAIL("%s", argc < 2 ? "no library" : dlerror());
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    NCCL(ncclGetUniqueId(&id));
    NCCL(ncclCommInitRank(&comm, 1, id, 0));
    NCCL(ncclCommDestroy(comm));
    return 0;
}
