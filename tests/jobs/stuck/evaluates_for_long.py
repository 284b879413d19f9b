# /// truth
# nproc = 3
# seconds = 12
#
# [healthy]
# ///
"""Rank 0 evaluates for long, and computes all the while, before it meets the others again."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
for epoch in range(2):
    for step in range(4):
        model(torch.randn(8, 64)).sum().backward()
    if rank == 0:
        end = time.monotonic() + 6
        with torch.no_grad():
            while time.monotonic() < end:
                model.module(torch.randn(256, 64))
    dist.barrier()
dist.destroy_process_group()
