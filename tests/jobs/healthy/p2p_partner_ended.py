# /// truth
# nproc = 2
# healthy = true
# ///
"""Rank 1 sends as many messages as rank 0 expects, and ends long before it."""

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
        dist.send(tensor, 0)
if rank == 0:
    time.sleep(2)
