# /// truth
# nproc = 3
# healthy = true
# seconds = 18
# ///
"""Batches differ in length: in every step another rank has the longest, all as often as the others."""

import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(16, 4))
until = time.monotonic() + 16
going = torch.ones(1)
lengths = random.Random(0)
while going.item():
    slow = lengths.randrange(3)
    loss = model(torch.randn(8, 16)).sum()
    time.sleep(0.16 if rank == slow else 0.05)
    loss.backward()
    # All stop in the same step.
    going[0] = time.monotonic() < until
    dist.broadcast(going, 0)
dist.destroy_process_group()
