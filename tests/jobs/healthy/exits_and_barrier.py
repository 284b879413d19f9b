# /// truth
# nproc = 3
# healthy = true
# ///
"""All ranks agree to stop by sys.exit, and meet in their finally."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
stop = torch.zeros(1)
try:
    for step in range(8):
        stop[0] = rank == 1 and step == 4
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            time.sleep(rank)
            sys.exit(0)
        dist.all_reduce(tensor)
finally:
    dist.barrier()
    dist.destroy_process_group()
