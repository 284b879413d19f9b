# /// truth
# nproc = 2
# code = "DD204"
# root = [1]
# root_confidence = "supported"
# says = "a lock"
# hang = true
# run_options = ["--stall-after", "8"]
# ///
"""Rank 1 takes a lock that it holds already."""

import threading

import torch
import torch.distributed as dist

lock = threading.Lock()
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)


def log(message):
    with lock:  # HERE rank 1
        print(message, flush=True)


for step in range(8):
    if rank == 1 and step == 4:
        with lock:
            log("half way")
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
