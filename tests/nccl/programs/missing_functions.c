/*
 * Looks up functions of NCCL 2.28 and 2.31 that the library lacks, as programs do that support several
 * versions; calls those it finds, then a function that exists.
 */
#include <nccl.h>

#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    int version;
    int (*revoke)(ncclComm_t, int) = NULL;
    int (*all_reduce)(const void *, void *, size_t, int, int, ncclComm_t, cudaStream_t, void *) = NULL;
    *(void **)&revoke = dlsym(RTLD_DEFAULT, "ncclCommRevoke");
    *(void **)&all_reduce = dlsym(RTLD_DEFAULT, "ncclAllReduceConfig");
    if (revoke != NULL && all_reduce != NULL)
        printf("%d %d\n", revoke(NULL, 0), all_reduce(NULL, NULL, 1, 7, 0, NULL, NULL, NULL));
    printf("%d\n", (int)ncclGetVersion(&version));
    return 0;
}
