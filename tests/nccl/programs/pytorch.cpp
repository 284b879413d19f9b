// Calls PyTorch's function that creates a communicator, as PyTorch's own extensions would, and prints what
// it throws.
#include <cstdio>
#include <stdexcept>

struct UniqueId {
    char internal[128];
};

extern "C" void attempt(void *(*comm_init_rank)(int, const UniqueId &, int), const UniqueId *id)
{
    try {
        comm_init_rank(1, *id, 0);
        std::puts("a communicator");
    } catch (const std::exception &error) {
        std::printf("no communicator: %.60s\n", error.what());
    }
    std::fflush(stdout);
}
