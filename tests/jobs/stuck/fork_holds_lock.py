# /// truth
# nproc = 2
#
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# says = "a child process"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 forks while a thread of it holds a lock, and waits for the child, which waits for the lock.

Healthy: Rank 1 takes the lock itself before it forks, so that the child gets one that is free; it contends.
"""

import os
import threading
import time

import torch
import torch.distributed as dist

lock = threading.Lock()


def write(held):
    with lock:
        held.set()
        time.sleep(2)


dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    if rank == 1 and step == 4:
        held = threading.Event()
        threading.Thread(target=write, args=(held,), daemon=True).start()
        held.wait()
        # if FAULTY
        child = os.fork()
        if child == 0:
            with lock:
        # else
        with lock:
            child = os.fork()
            if child == 0:
        # end
                os._exit(0)
        os.waitpid(child, 0)  # HERE rank 1
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
