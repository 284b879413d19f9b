"""A rank that seems stuck on NCCL. It stands in for PyTorch's Flight Recorder: what a GPU job recorded, with all times
moved so that its last call was issued AGE seconds before the dump."""
import ctypes
import gzip
import os
import pickle
import threading
import time

import torch  # noqa: F401 (its libraries show that this is a rank)

RANK = os.environ["RANK"]
PIPE = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + RANK + ".pipe"
os.mkfifo(PIPE)


def start(name, work):
    def named():
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
        work()

    threading.Thread(target=named, daemon=True).start()


def recorded(rank):
    with gzip.open(os.path.join(os.environ["DUMPS"], f"missing.{rank}.gz")) as file:
        return pickle.load(file)


def wait_for_byte(pipe):
    while True:
        try:
            if os.read(pipe, 1):
                return
        except BlockingIOError:
            pass
        time.sleep(0.1)


def record():
    pipe = os.open(PIPE, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        wait_for_byte(pipe)
        last = max(entry["time_created_ns"] for rank in range(3) for entry in recorded(rank)["entries"])
        moved = time.time_ns() - int(float(os.environ["AGE"]) * 1e9) - last
        dump = recorded(RANK)
        for entry in dump["entries"]:
            for key in ("time_created_ns", "time_discovered_completed_ns"):
                entry[key] = entry[key] and entry[key] + moved
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + RANK, "wb") as file:
            pickle.dump(dump, file, protocol=2)


start(b"pt_nccl_watchdg", lambda: time.sleep(600))
start(b"pt_nccl_heartbt", record)
while True:
    pass
