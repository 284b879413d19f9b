/* One process with all ranks, and the CUDA double on its own. One rank. */
#include <rank.h>

enum { DEVICES = 3 };

static void several_devices_of_one_process(void)
{
    ncclComm_t comms[DEVICES];
    CUstream streams[DEVICES];
    float *values[DEVICES];
    int devices[DEVICES] = {4, 2, 0}, found;
    NCCL(ncclCommInitAll(comms, DEVICES, devices));
    for (int i = 0; i < DEVICES; ++i) {
        CUcontext context;
        CU(cuDevicePrimaryCtxRetain(&context, devices[i]));
        CU(cuCtxSetCurrent(context));
        CU(cuStreamCreate(&streams[i], 0));
        values[i] = floats(1);
        *values[i] = (float)(1 << i);
        NCCL(ncclCommUserRank(comms[i], &found));
        EXPECT(found == i);
        NCCL(ncclCommCuDevice(comms[i], &found));
        EXPECT(found == devices[i]);
    }
    NCCL(ncclGroupStart());
    for (int i = 0; i < DEVICES; ++i)
        NCCL(ncclAllReduce(values[i], values[i], 1, ncclFloat32, ncclSum, comms[i], streams[i]));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < DEVICES; ++i) {
        CU(cuStreamSynchronize(streams[i]));
        EXPECT(*values[i] == 7);
    }
    /* Messages of all ranks in one group connect concurrently. */
    NCCL(ncclGroupStart());
    for (int i = 0; i < DEVICES; ++i) {
        NCCL(ncclSend(values[i], 1, ncclFloat32, (i + 1) % DEVICES, comms[i], streams[i]));
        NCCL(ncclRecv(values[i], 1, ncclFloat32, (i + DEVICES - 1) % DEVICES, comms[i], streams[i]));
    }
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
    for (int i = 0; i < DEVICES; ++i)
        NCCL(ncclCommDestroy(comms[i]));
    NCCL(ncclGroupEnd());
    devices[1] = 4;
    EXPECT(ncclCommInitAll(comms, DEVICES, devices) == ncclInvalidUsage);
}

static void memory_is_used_up(void)
{
    CUdeviceptr address, more;
    size_t before, after, total;
    CU(cuMemGetInfo_v2(&before, &total));
    EXPECT(total == 64 << 20 && before <= total);
    CU(cuMemAlloc_v2(&address, before - 4096));
    CU(cuMemGetInfo_v2(&after, &total));
    EXPECT(after == 4096);
    EXPECT(cuMemAlloc_v2(&more, 4097) == CUDA_ERROR_OUT_OF_MEMORY);
    CU(cuMemFree_v2(address));
    EXPECT(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
    CU(cuMemGetInfo_v2(&after, &total));
    EXPECT(after == before);
}

static void functions_are_found_by_version(void)
{
    void *function, *newer;
    int status = -1;
    CU(cuGetProcAddress_v2("cuStreamGetCaptureInfo", &function, 11000, 0, &status));
    EXPECT(status == 0);
    CU(cuGetProcAddress_v2("cuStreamGetCaptureInfo", &newer, 12080, 0, NULL));
    EXPECT(function != newer);
    CU(cuGetProcAddress_v2("cuMemFree", &function, 12080, 0, NULL));
    EXPECT(function == (void *)cuMemFree_v2);
    EXPECT(cuGetProcAddress_v2("cuNothing", &function, 12080, 0, &status) == CUDA_ERROR_NOT_FOUND);
    EXPECT(function == NULL && status == 1);
}

static void contexts_are_of_threads(void)
{
    CUcontext current, primary, popped;
    CUstream elsewhere;
    CUevent event;
    CUdevice device;
    unsigned flags;
    int is_active;
    CU(cuDevicePrimaryCtxRetain(&primary, 5));
    CU(cuCtxGetCurrent(&current));
    EXPECT(current != primary);
    CU(cuCtxPushCurrent_v2(primary));
    CU(cuCtxGetDevice(&device));
    EXPECT(device == 5);
    CU(cuStreamCreate(&elsewhere, 0));
    CU(cuCtxPopCurrent_v2(&popped));
    EXPECT(popped == primary);
    /* An event can be recorded only in streams of its context. */
    CU(cuEventCreate(&event, 0));
    EXPECT(cuEventRecord(event, elsewhere) == CUDA_ERROR_INVALID_HANDLE);
    CU(cuEventQuery(event));
    CU(cuEventRecord(event, stream));
    CU(cuEventDestroy_v2(event));
    EXPECT(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
    CU(cuCtxSetCurrent(NULL));
    EXPECT(cuEventCreate(&event, 0) == CUDA_ERROR_INVALID_CONTEXT);
    CU(cuCtxSetCurrent(current));
    CU(cuDevicePrimaryCtxRelease_v2(5));
    CU(cuDevicePrimaryCtxGetState(5, &flags, &is_active));
    EXPECT(!is_active);
}

int main(void)
{
    size_t free, total;
    EXPECT(cuMemGetInfo_v2(&free, &total) == CUDA_ERROR_NOT_INITIALIZED);
    begin();
    several_devices_of_one_process();
    CUcontext context;
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    memory_is_used_up();
    functions_are_found_by_version();
    contexts_are_of_threads();
    return 0;
}
