"""A job of PyTorch over the double of NCCL, with what stands in for PyTorch's Flight Recorder: a thread that polls the FIFO
of the rank, and writes a dump in PyTorch's format once a byte arrives. CUDA's events show which calls are complete.

KIND: "alone": the fifth call has exchanged its data, and its kernel does not end on rank 1; "healthy": the host waits for
something else meanwhile; otherwise NCCL_DOUBLE_FAULTS says what does not end. STARTS: events before calls show when these
begin.
"""
import ctypes
import os
import pathlib
import pickle
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "jobs/layers/site-packages"))

# Before PyTorch, which would load an NCCL of its own.
from doubled import Doubled, check, cuda, stream  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

RANK = int(os.environ["RANK"])
PIPE = os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
HAS_STARTS = "STARTS" in os.environ
# One of CUDA's errors: work is under way.
NOT_READY = 600
entries, events = [], []
lock = threading.Lock()
endless = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(600))


def event():
    made = ctypes.c_void_p()
    check(cuda.cuEventCreate(ctypes.byref(made), 0))
    check(cuda.cuEventRecord(made, stream))
    return made


def is_over(made):
    status = cuda.cuEventQuery(made)
    assert status in (0, NOT_READY), status
    return status == 0


class Recorded(Doubled):
    def allreduce(self, *arguments):
        self.communicator()
        before = event()
        work = super().allreduce(*arguments)
        seq = len(entries) + 1
        if os.environ["KIND"] == "alone" and RANK == 1 and seq == 5:
            check(cuda.cuLaunchHostFunc(stream, endless, None))
        with lock:
            events.append((before, event()))
            entries.append({
                "frames": [], "record_id": seq - 1, "pg_id": 0, "process_group": ("0", "default_pg"),
                "thread_name": "python", "thread_id": "1", "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
                "profiling_name": "nccl:all_reduce", "time_created_ns": time.time_ns(), "input_sizes": [[64]],
                "input_dtypes": ["Float"], "output_sizes": [[64]], "output_dtypes": ["Float"], "state": "scheduled",
                "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
                "timeout_ms": 600000, "is_p2p": False,
            })
        return work


def watch():
    """As PyTorch's watchdog: it notes when it finds that calls have begun and are complete."""
    with lock:
        for entry, (before, after) in zip(entries, events):
            if entry["state"] == "completed":
                continue
            if is_over(after):
                entry.update(state="completed", retired=True, time_discovered_completed_ns=time.time_ns())
            elif HAS_STARTS and is_over(before):
                entry.update(state="started", time_discovered_started_ns=time.time_ns())


def dump():
    with lock:
        complete = sum(entry["state"] == "completed" for entry in entries)
        started = sum(entry["state"] != "scheduled" for entry in entries)
        return pickle.dumps({
            "version": "2.10", "comm_lib_version": "2.28.9",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
            "pg_status": {"0": {
                "last_enqueued_collective": len(entries), "last_completed_collective": complete,
                "last_started_collective": started if HAS_STARTS else -1,
            }},
            "entries": entries,
        }, protocol=2)


def record():
    pipe = os.open(PIPE + "%d.pipe" % RANK, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        time.sleep(0.1)
        watch()
        if os.read(pipe, 128):
            pathlib.Path(os.environ["ASKED"]).open("a").write("%d\n" % RANK)
            pathlib.Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(RANK)).write_bytes(dump())


def average(tensor):
    dist.all_reduce(tensor)


def wait():
    """As `torch.cuda.synchronize` does; but not for ever: the launcher of a real job would end it."""
    given_up = threading.Timer(float(os.environ.get("PATIENCE", "90")), os._exit, [1])
    given_up.daemon = True
    given_up.start()
    check(cuda.cuStreamSynchronize(stream))
    given_up.cancel()


# The name of one of PyTorch's backends over NCCL.
dist.Backend.register_backend("nccl4py", lambda store, at, size, timeout: Recorded(store, at, size), devices=["cpu"])
dist.init_process_group("nccl4py")
if PIPE:
    os.mkfifo(PIPE + "%d.pipe" % RANK)
    threading.Thread(target=record, daemon=True).start()
gradients = torch.ones(64)
for step in range(6):
    average(gradients)
    wait()
    if os.environ["KIND"] == "healthy" and step == 4:
        # Longer than it takes until a device would be asked, in a process whose device has nothing to do.
        time.sleep(6)
