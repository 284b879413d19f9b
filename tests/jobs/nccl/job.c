/*
 * Ranks that call NCCL themselves, with a planted fault or without:
 *
 *   job SCENARIO faulty|healthy
 *
 * What is wrong with the faulty ones, and who did it, is at the head of each scenario; it is always rank 1,
 * of three. The healthy twin does the same without the fault, and must be heard of by nobody.
 *
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * run_options = ["--stall-after", "4"]
 * layers = ["nccl"]
 * faulty = { ranks = { root = [1] }, layer = "nccl" }
 *
 * [scenario.op]
 * faulty = { code = "DD103", confidence = "proved", hang = true }
 * healthy = {}
 * [scenario.count]
 * faulty = { code = "DD104", confidence = "proved", hang = true }
 * healthy = {}
 * [scenario.piece]
 * faulty = { code = "DD104", confidence = "proved", hang = true }
 * healthy = {}
 * [scenario.dtype]
 * faulty = { code = "DD105", confidence = "proved" }
 * healthy = {}
 * [scenario.reduction]
 * faulty = { code = "DD106", confidence = "proved" }
 * healthy = {}
 * [scenario.root]
 * faulty = { code = "DD107", confidence = "proved", hang = true }
 * healthy = {}
 * [scenario.missing]
 * faulty = { code = "DD101", confidence = "supported", hang = true }
 * healthy = {}
 * [scenario.missing_of_two]
 * faulty = { code = "DD101", confidence = "supported", hang = true }
 * healthy = {}
 * [scenario.leaves]
 * faulty = { code = "DD102", confidence = "proved", hang = true }
 * healthy = {}
 * [scenario.killed]
 * faulty = { code = "DD201", confidence = "proved" }
 * healthy = {}
 * [scenario.split]
 * faulty = { code = "DD114", confidence = "supported", hang = true }
 * healthy = {}
 * [scenario.group]
 * faulty = { code = "DD104", confidence = "proved", hang = true }
 * healthy = {}
 * [scenario.simulated]
 * faulty = { code = "DD103", confidence = "proved", hang = true }
 * healthy = {}
 * [scenario.again]
 * faulty = { code = "DD104", confidence = "proved", hang = true }
 * healthy = {}
 * [scenario.captured]
 * faulty = { code = "DD105", confidence = "proved" }
 * healthy = {}
 * [scenario.children]
 * quick = ["healthy"]
 * healthy = {}
 * [scenario.forking]
 * quick = ["healthy"]
 * healthy = {}
 * [scenario.message]
 * faulty = { code = "DD113", root_confidence = "suspected" }
 * healthy = {}
 * ///
 */
#include <rank.h>

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static ncclComm_t world_comm;
static float *in, *out;
static int faulty;

/* This rank is to do it wrong. */
static int wrong(void)
{
    return faulty && rank == 1;
}

static void sum(ncclComm_t comm, size_t count)
{
    NCCL(ncclAllReduce(in, out, count, ncclFloat32, ncclSum, comm, stream));
}

/* Waits for the stream, but not for ever: the launcher of a real job would end it. */
static void settle(void)
{
    for (int tries = 0; tries < 2000; ++tries) {
        if (cuStreamQuery(stream) == CUDA_SUCCESS)
            return;
        sleep_ms(5);
    }
    _exit(1);
}

/* Makes no call. After a while somebody loses patience and ends the whole job. */
static void away(void)
{
    sleep_ms(10000);
    kill(0, SIGTERM);
    sleep_ms(60000);
}

/* DD103: another collective. */
static void op(void)
{
    if (wrong())
        NCCL(ncclReduceScatter(in, out, 64, ncclFloat32, ncclSum, world_comm, stream));
    else
        sum(world_comm, 64);
}

/* DD104: another size. */
static void count(void)
{
    sum(world_comm, wrong() ? 65 : 64);
}

/* DD104: another size of a gather's pieces. */
static void piece(void)
{
    NCCL(ncclAllGather(in, out, wrong() ? 17 : 16, ncclFloat32, world_comm, stream));
}

/* DD105: another type of the same size. */
static void dtype(void)
{
    NCCL(ncclAllReduce(in, out, 64, wrong() ? ncclInt32 : ncclFloat32, ncclSum, world_comm, stream));
}

/* DD106: another reduction. */
static void reduction(void)
{
    NCCL(ncclAllReduce(in, out, 64, ncclFloat32, wrong() ? ncclMax : ncclSum, world_comm, stream));
}

/* DD107: another root. */
static void root(void)
{
    NCCL(ncclBroadcast(in, out, 64, ncclFloat32, wrong() ? 2 : 0, world_comm, stream));
}

/* DD101: it makes no call, and lives. */
static void missing(void)
{
    if (wrong())
        away();
    sum(world_comm, 64);
}

/* DD101: it does not come to a communicator of its own and rank 0, after it made that. */
static void missing_of_two(void)
{
    ncclComm_t half;
    NCCL(ncclCommSplit(world_comm, rank == 2 ? NCCL_SPLIT_NOCOLOR : 0, -rank, &half, NULL));
    if (wrong())
        away();
    if (rank != 2)
        sum(half, 64);
    settle();
    if (rank != 2)
        leave(half);
}

/* DD102: it ends, in order. */
static void leaves(void)
{
    if (wrong()) {
        sleep_ms(300);
        exit(0);
    }
    sum(world_comm, 64);
}

/* DD201: it is killed. */
static void killed(void)
{
    if (wrong()) {
        sleep_ms(300);
        kill(getpid(), SIGKILL);
    }
    sum(world_comm, 64);
}

/* DD114: it does not come to divide the communicator. */
static void split(void)
{
    ncclComm_t half;
    if (wrong())
        away();
    NCCL(ncclCommSplit(world_comm, rank % 2, rank, &half, NULL));
    sum(half, 8);
    leave(half);
}

/* DD113: it does not receive what rank 0 sends. */
static void message(void)
{
    if (wrong())
        away();
    if (rank == 0)
        NCCL(ncclSend(in, 64, ncclFloat32, 1, world_comm, stream));
    if (rank == 1)
        NCCL(ncclRecv(out, 64, ncclFloat32, 0, world_comm, stream));
}

/* DD104: one call of a group has another size. The others ask for the group in another order, which is
 * nobody's fault. */
static void group(void)
{
    size_t counts[3] = {16, 32, 48};
    NCCL(ncclGroupStart());
    for (int i = 0; i < 3; ++i) {
        size_t count = counts[(i + rank) % 3];
        sum(world_comm, wrong() && count == 32 ? 33 : count);
    }
    NCCL(ncclGroupEnd());
}

/* DD103: in the group that it simulates it asks for nothing that counts; after it for another collective. */
static void simulated(void)
{
    NCCL(ncclGroupStart());
    sum(world_comm, (size_t)rank + 1);
    NCCL(ncclGroupSimulateEnd(NULL));
    op();
}

/* DD104: after a communicator is gone, another one has its address. */
static void again(void)
{
    for (int i = 0; i < 4; ++i) {
        char name[16];
        ncclComm_t comm;
        snprintf(name, sizeof name, "again%d", i);
        NCCL(ncclCommInitRank(&comm, world, meet(name, 0), rank));
        sum(comm, wrong() && i == 3 ? 4 : 3);
        settle();
        leave(comm);
    }
}

/* Nobody's fault: threads, children and programs of theirs inherit what is preloaded. */
static void children(void)
{
    int status;
    if (fork() == 0) {
        execlp("bash", "bash", "-c", "true | cat && :", (char *)NULL);
        _exit(9);
    }
    EXPECT(wait(&status) > 0 && status == 0);
    if (fork() == 0) {
        /* No call of this process's is a rank's. */
        int version;
        _exit(ncclGetVersion(&version) == ncclSuccess ? 0 : 8);
    }
    EXPECT(wait(&status) > 0 && status == 0);
    sum(world_comm, 64);
}

static void *forks(void *none)
{
    for (int i = 0; i < 20; ++i) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            if (i % 2 == 0)
                execlp("true", "true", (char *)NULL);
            _exit(ncclGroupStart() == ncclSuccess && ncclGroupEnd() == ncclSuccess ? 0 : 8);
        }
        EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    return none;
}

/* Nobody's fault: some threads fork all the time, while another one calls NCCL. */
static void forking(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i)
        EXPECT(pthread_create(&threads[i], NULL, forks, NULL) == 0);
    for (int i = 0; i < 300; ++i)
        sum(world_comm, 64);
    for (int i = 0; i < THREADS; ++i)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    sum(world_comm, 64);
}

/* DD105: another type, in a call that only a graph makes. */
static void captured(void)
{
    CUgraph graph;
    CUgraphExec executable;
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    dtype();
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < 3; ++i)
        CU(cuGraphLaunch(executable, stream));
    settle();
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"op", op},           {"count", count},       {"piece", piece},
    {"dtype", dtype},     {"reduction", reduction}, {"root", root},
    {"missing", missing}, {"missing_of_two", missing_of_two},
    {"leaves", leaves},   {"killed", killed},     {"split", split},
    {"message", message}, {"group", group},       {"simulated", simulated},
    {"again", again},     {"children", children}, {"captured", captured},
    {"forking", forking},
};

int main(int argc, char **argv)
{
    /* Whoever ends the launcher ends its ranks. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 3)
        FAIL("usage: job SCENARIO faulty|healthy");
    faulty = strcmp(argv[2], "faulty") == 0;
    begin();
    in = floats(4096);
    out = floats(4096);
    world_comm = join();
    for (int i = 0; i < 10; ++i)
        sum(world_comm, 256);
    settle();
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; ++i) {
        if (strcmp(scenarios[i].name, argv[1]) == 0) {
            scenarios[i].run();
            settle();
            leave(world_comm);
            return 0;
        }
    }
    FAIL("no scenario %s", argv[1]);
}
