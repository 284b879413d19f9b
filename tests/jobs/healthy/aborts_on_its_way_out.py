# /// truth
# nproc = 2
# healthy = true
# ///
"""Rank 1 ends before rank 0, which is still on its way out."""

import atexit
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    atexit.register(time.sleep, 1)
for _ in range(4):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
