# /// truth
# nproc = 2
# code = "DD117"
# root = [0]
# root_confidence = "supported"
# cause = "rank-conditional"
# hang = true
# decisive = "stamp"
# ///
"""Rank 0 alone evaluates through DDP, in training mode, where every forward broadcasts BatchNorm's buffers."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def stamp():
    """Tells the test when the decisive call was made."""
    path = os.environ.get("DDP_DOCTOR_TEST_STAMP")
    if path:
        with open(f"{path}.{rank}", "w") as file:
            file.write(str(time.time_ns()))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(6):
    optimizer.zero_grad()
    stamp()
    outputs = model(torch.randn(8, 16))  # HERE rank 0
    stamp()
    outputs.sum().backward()  # HERE rank 1
    optimizer.step()
    if step == 3 and rank == 0:
        model(torch.randn(8, 16))
dist.destroy_process_group()
