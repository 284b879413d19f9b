"""/// truth
nproc = 3
healthy = true
///"""
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
matrix = torch.ones(64, 64)
for step in range(100_000):
    if dist.get_rank() == 1:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            matrix = matrix @ matrix / 64
    dist.all_reduce(torch.ones(8))
