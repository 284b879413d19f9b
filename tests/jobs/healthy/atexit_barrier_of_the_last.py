# /// truth
# nproc = 3
# healthy = true
# ///
"""Rank 1 has an atexit that writes its results, long after the others have ended."""

import atexit
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    dist.all_reduce(tensor)
    time.sleep(0.05)
dist.barrier()
if rank == 1:

    @atexit.register
    def finish():
        time.sleep(3)
        torch.save(tensor, "/dev/null")
