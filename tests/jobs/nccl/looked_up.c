/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * nccl = "soname"
 * layers = ["nccl"]
 * quick = ["faulty"]
 * [faulty]
 * code = "DD104"
 * verdict = "hang"
 * hang = true
 * ranks = { root = [1], victims = [0, 2] }
 * [healthy]
 * ///
 * The program is linked with no NCCL: it loads the library by its name and looks the functions up there, as
 * CuPy and JAX do. Rank 1's last batch is smaller.
 */
#define ncclGetUniqueId (*look_up_get_unique_id)
#define ncclGetErrorString (*look_up_get_error_string)
#define ncclGetLastError (*look_up_get_last_error)
#define ncclCommInitRank (*look_up_comm_init_rank)
#define ncclCommUserRank (*look_up_comm_user_rank)
#define ncclCommDestroy (*look_up_comm_destroy)
#define ncclAllReduce (*look_up_all_reduce)
#include <rank.h>

#include <dlfcn.h>

/* The pointer that the header has declared for a function of that name. */
static void look_up(void *library, const char *name, void *pointer)
{
    *(void **)pointer = dlsym(library, name);
    if (*(void **)pointer == NULL)
        FAIL("%s", dlerror());
}

int main(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        FAIL("%s", dlerror());
    look_up(library, "ncclGetUniqueId", &look_up_get_unique_id);
    look_up(library, "ncclGetErrorString", &look_up_get_error_string);
    look_up(library, "ncclGetLastError", &look_up_get_last_error);
    look_up(library, "ncclCommInitRank", &look_up_comm_init_rank);
    look_up(library, "ncclCommUserRank", &look_up_comm_user_rank);
    look_up(library, "ncclCommDestroy", &look_up_comm_destroy);
    look_up(library, "ncclAllReduce", &look_up_all_reduce);
    begin();
    ncclComm_t comm = join();
    int found = -1;
    NCCL(ncclCommUserRank(comm, &found));
    EXPECT(found == rank);
    float *losses = floats(64);
    for (int step = 1; step <= 6; ++step) {
        size_t batch = step == 6 ? 32 : 64;
#ifdef FAULTY
        if (rank == 1 && step == 6)
            batch = 17;
#endif
        NCCL(ncclAllReduce(losses, losses, batch, ncclFloat32, ncclSum, comm, stream));
        synchronize();
    }
    leave(comm);
    return 0;
}
