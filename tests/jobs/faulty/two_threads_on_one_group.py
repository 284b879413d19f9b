# /// truth
# nproc = 2
# code = "DD115"
# root = [0, 1]
# root_confidence = "suspected"
# ///
"""A thread that logs and one that trains use one group; which of them comes first is chance."""

import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def train():
    for step in range(4):
        dist.all_reduce(torch.ones(64))  # HERE rank 0
        time.sleep(0.4)


def log():
    for step in range(4):
        dist.all_reduce(torch.full((64,), 2.0))  # HERE rank 1
        time.sleep(0.4)


threads = [threading.Thread(target=train), threading.Thread(target=log)]
for thread in threads if rank == 0 else reversed(threads):
    thread.start()
    time.sleep(0.2)
for thread in threads:
    thread.join()
dist.barrier()
dist.destroy_process_group()
