"""A rank that seems stuck on NCCL. It stands in for PyTorch's Flight Recorder: what a GPU job recorded, with all times
moved so that its last call was issued AGE seconds before the dump."""
import ctypes
import gzip
import importlib.util
import mmap
import os
import pathlib
import pickle
import threading
import time

RANK = os.environ["RANK"]
PIPE = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + RANK + ".pipe"
# A process with this library is a rank. To load it takes long on a busy machine.
with open(pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib/libtorch_cpu.so", "rb") as file:
    library = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
os.mkfifo(PIPE)


def start(name, work):
    def named():
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
        work()

    threading.Thread(target=named, daemon=True).start()


def recorded(rank):
    with gzip.open(os.path.join(os.environ["DUMPS"], f"missing.{rank}.gz")) as file:
        return pickle.load(file)


def record():
    # The thread sleeps until a byte arrives: one that polled would take the interpreter's lock from the main thread.
    pipe = os.open(PIPE, os.O_RDWR)
    while os.read(pipe, 1):
        moved = time.time_ns() - int(float(os.environ["AGE"]) * 1e9) - last
        for entry, (created, completed) in zip(dump["entries"], times):
            entry["time_created_ns"] = created and created + moved
            entry["time_discovered_completed_ns"] = completed and completed + moved
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + RANK, "wb") as file:
            pickle.dump(dump, file, protocol=2)


last = max(entry["time_created_ns"] for rank in range(3) for entry in recorded(rank)["entries"])
dump = recorded(RANK)
times = [(entry["time_created_ns"], entry["time_discovered_completed_ns"]) for entry in dump["entries"]]
start(b"pt_nccl_watchdg", lambda: time.sleep(600))
start(b"pt_nccl_heartbt", record)

# It waits for work of its device that does not end.
cuda = ctypes.CDLL(os.path.join(os.environ["DOUBLES"], "libcuda.so.1"))
device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
endless = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(600))
for status in (
    cuda.cuInit(0),
    cuda.cuDeviceGet(ctypes.byref(device), 0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    cuda.cuCtxSetCurrent(context),
    cuda.cuStreamCreate(ctypes.byref(stream), 0),
    cuda.cuLaunchHostFunc(stream, endless, None),
    cuda.cuStreamSynchronize(stream),
):
    assert status == 0, status
