# /// truth
# nproc = 2
# healthy = true
# ///
"""Rank 1 is a second late."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    if rank == 1 and step == 4:
        time.sleep(1)
    dist.all_reduce(tensor)
    time.sleep(0.05)
dist.destroy_process_group()
