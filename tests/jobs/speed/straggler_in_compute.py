# /// truth
# nproc = 3
# alone = true
# seconds = 12
#
# [faulty]
# code = "DD601"
# verdict = "slow"
# root_confidence = "supported"
# says = "because it takes longer between two collectives"
# ranks = { root = [1], victims = [0, 2] }
# ///
"""Rank 1 takes three times as long as the others for each step: all of them measure the same long step."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(16, 4))
until = time.monotonic() + 8
going = torch.ones(1)
while going.item():
    loss = model(torch.randn(8, 16)).sum()
    time.sleep(0.24 if rank == 1 else 0.08)
    loss.backward()  # HERE rank 0 2
    # All stop in the same step.
    going[0] = time.monotonic() < until
    dist.broadcast(going, 0)
dist.destroy_process_group()
