# /// truth
# nproc = 3
# healthy = true
# ///
"""All ranks meet at a barrier in atexit, one of them seconds after the others."""

import atexit
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)


@atexit.register
def finish():
    dist.barrier()
    dist.destroy_process_group()


for step in range(8):
    dist.all_reduce(tensor)
    time.sleep(0.05)
if rank == 1:
    time.sleep(3)
