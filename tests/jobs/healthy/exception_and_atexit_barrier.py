# /// truth
# nproc = 2
# healthy = true
# ///
"""An exception that rank 1 deals with; all ranks meet at a barrier in atexit."""

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
    try:
        if rank == 1 and step == 4:
            raise ValueError("a broken sample")
    except ValueError:
        time.sleep(0.5)
    dist.all_reduce(tensor)
    time.sleep(0.05)
