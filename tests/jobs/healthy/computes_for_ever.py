# /// truth
# nproc = 2
# healthy = true
# seconds = 6
# ///
"""Rank 1 computes for seconds, busy at one line, while rank 0 waits."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    if rank == 1 and step == 4:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            pass
    dist.all_reduce(tensor)
    time.sleep(0.05)
dist.destroy_process_group()
