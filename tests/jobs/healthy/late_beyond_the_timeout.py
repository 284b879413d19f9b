# /// truth
# nproc = 2
# healthy = true
# seconds = 10
# ///
"""Rank 1 is later than the group's first timeout, which was set anew before."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank = dist.get_rank()
tensor = torch.ones(8)
dist.all_reduce(tensor)
dist.set_timeout(timedelta(seconds=60))
for step in range(8):
    if rank == 1 and step == 4:
        time.sleep(8)
    dist.all_reduce(tensor)
dist.destroy_process_group()
