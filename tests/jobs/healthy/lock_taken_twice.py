# /// truth
# nproc = 2
# healthy = true
# ///
"""Rank 1 takes a reentrant lock that it holds already, after another thread has let go of it."""

import threading
import time

import torch
import torch.distributed as dist

lock = threading.RLock()
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)


def log(message):
    with lock:
        print(message, flush=True)


def hold(held):
    with lock:
        held.set()
        time.sleep(3)


for step in range(8):
    if rank == 1 and step == 4:
        held = threading.Event()
        threading.Thread(target=hold, args=(held,)).start()
        held.wait()
        with lock:
            log("half way")
    dist.all_reduce(tensor)
dist.destroy_process_group()
