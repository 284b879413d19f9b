# /// truth
# nproc = 2
# code = "DD201"
# root = [1]
# root_confidence = "proved"
# hang = false
# says = "on its way out"
# ///
"""Rank 1 aborts when its program has ended, and torchrun ends rank 0, which is still on its way out."""

import atexit
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    atexit.register(os.abort)
else:
    atexit.register(time.sleep, 60)
for _ in range(4):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
