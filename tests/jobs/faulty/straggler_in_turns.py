# /// truth
# nproc = 3
# code = "DD601"
# root = [1, 2]
# root_confidence = "supported"
# says = "keep the others waiting in turn"
# seconds = 18
# ///
"""Ranks 1 and 2 take turns at being slow, five steps each; rank 0 never is."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(16, 4))
until = time.monotonic() + 16
going = torch.ones(1)
step = 0
while going.item():
    slow = 1 + step // 5 % 2
    loss = model(torch.randn(8, 16)).sum()
    time.sleep(0.16 if rank == slow else 0.05)
    loss.backward()  # HERE rank 0
    step += 1
    # All stop in the same step.
    going[0] = time.monotonic() < until
    dist.broadcast(going, 0)
dist.destroy_process_group()
