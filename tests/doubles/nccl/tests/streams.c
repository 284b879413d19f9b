/* Calls return before their work is done, which follows the order of streams and communicators. Two ranks. */
#include <rank.h>

#include <pthread.h>

static ncclComm_t comm;
static CUevent event;
static float *value;

/* Waits until rank `by` has reached this point. */
static void signal_from(int by, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("JOB_DIR"), name);
    if (rank == by) {
        FILE *file = fopen(path, "w");
        if (file == NULL || fclose(file) != 0)
            FAIL("cannot write %s", path);
    } else {
        while (access(path, F_OK) != 0)
            sleep_ms(5);
    }
}

static void calls_return_before_their_peers_come(void)
{
    *value = 1;
    if (rank == 1)
        signal_from(0, "asked");
    NCCL(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comm, stream));
    CU(cuEventRecord(event, stream));
    if (rank == 0) {
        EXPECT(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
        EXPECT(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
        signal_from(0, "asked");
    }
    CU(cuEventSynchronize(event));
    CU(cuEventQuery(event));
    CU(cuStreamQuery(stream));
    EXPECT(*value == 2);
}

/* Rank 1's second call is the first in its stream, but waits for the first call of the communicator. */
static void a_communicator_has_one_order(void)
{
    CUstream other;
    float *second = floats(1);
    *second = 3, *value = 1;
    CU(cuStreamCreate(&other, 0));
    if (rank == 1)
        signal_from(0, "first");
    NCCL(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comm, stream));
    NCCL(ncclAllReduce(second, second, 1, ncclFloat32, ncclSum, comm, other));
    if (rank == 0) {
        sleep_ms(20);
        EXPECT(cuStreamQuery(other) == CUDA_ERROR_NOT_READY);
        signal_from(0, "first");
    }
    CU(cuStreamSynchronize(other));
    EXPECT(*value == 2 && *second == 6);
    CU(cuStreamDestroy_v2(other));
}

static void *send_first(void *returned)
{
    CUcontext context;
    CU(cuDevicePrimaryCtxRetain(&context, rank));
    CU(cuCtxSetCurrent(context));
    NCCL(ncclSend(value, 1, ncclFloat32, 1, comm, stream));
    __atomic_store_n((int *)returned, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* The first message of a pair blocks the caller until both sides request it, later ones block their streams. */
static void messages_wait_for_their_receivers(void)
{
    if (rank == 0) {
        pthread_t thread;
        int returned = 0;
        *value = 5;
        if (pthread_create(&thread, NULL, send_first, &returned) != 0)
            FAIL("no thread");
        sleep_ms(50);
        EXPECT(!__atomic_load_n(&returned, __ATOMIC_ACQUIRE));
        signal_from(0, "blocked");
        pthread_join(thread, NULL);
        synchronize();
        NCCL(ncclSend(value, 1, ncclFloat32, 1, comm, stream));
        sleep_ms(20);
        EXPECT(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
        signal_from(0, "sent");
    } else {
        for (int i = 0; i < 2; ++i) {
            signal_from(0, i == 0 ? "blocked" : "sent");
            *value = 0;
            NCCL(ncclRecv(value, 1, ncclFloat32, 0, comm, stream));
            synchronize();
            EXPECT(*value == 5);
        }
    }
    synchronize();
}

static void captured_calls_are_done_with_their_graph(void)
{
    CUgraph graph;
    CUgraphExec executable;
    unsigned status;
    *value = 1;
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuStreamIsCapturing(stream, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    NCCL(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comm, stream));
    CU(cuEventRecord(event, stream));
    CU(cuStreamEndCapture(stream, &graph));
    EXPECT(cuEventQuery(event) == CUDA_ERROR_CAPTURED_EVENT);
    synchronize();
    EXPECT(*value == 1);
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphLaunch(executable, stream));
    CU(cuGraphLaunch(executable, stream));
    synchronize();
    EXPECT(*value == 4);
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
    /* Calls outside the capture work as before. */
    NCCL(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comm, stream));
    CU(cuEventRecord(event, stream));
    CU(cuEventSynchronize(event));
    EXPECT(*value == 8);
}

/* A call that a capture forbids fails and invalidates the capture. */
static void captures_are_spoilt(void)
{
    CUgraph graph;
    CUdeviceptr address;
    unsigned mode = CU_STREAM_CAPTURE_MODE_RELAXED, status;
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CU(cuEventQuery(event));
    CU(cuMemAlloc_v2(&address, 16));
    CU(cuMemFree_v2(address));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuStreamIsCapturing(stream, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT(cuEventQuery(event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CU(cuStreamIsCapturing(stream, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU(cuEventQuery(event));
}

int main(void)
{
    begin();
    CU(cuEventCreate(&event, 0));
    value = floats(1);
    comm = join();
    calls_return_before_their_peers_come();
    a_communicator_has_one_order();
    messages_wait_for_their_receivers();
    captured_calls_are_done_with_their_graph();
    captures_are_spoilt();
    leave(comm);
    return 0;
}
