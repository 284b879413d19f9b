/*
 * Runs a job that is a library, as extensions of Python are: loaded for nobody else, and NCCL for it.
 *
 *   host LIBRARY [ARGUMENT…]
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*run)(int, char **) = NULL;
    if (library != NULL)
        *(void **)&run = dlsym(library, "job_main");
    if (run == NULL) {
        fprintf(stderr, "host: %s\n", argc > 1 ? dlerror() : "no library");
        return 2;
    }
    return run(argc - 1, argv + 1);
}
