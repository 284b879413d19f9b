# /// truth
# nproc = 2
# healthy = true
# ///
"""Rank 1 sends its last message a second late."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for microbatch in range(4):
    if rank == 0:
        dist.recv(tensor, 1)
    else:
        if microbatch == 3:
            time.sleep(1)
        dist.send(tensor, 0)
dist.destroy_process_group()
