# /// truth
# nproc = 2
# healthy = true
# ///
"""Rank 0 alone evaluates the module inside DDP, which does not communicate."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(6):
    optimizer.zero_grad()
    outputs = model(torch.randn(8, 16))
    outputs.sum().backward()
    optimizer.step()
    if step == 3 and rank == 0:
        with torch.no_grad():
            model.module(torch.randn(8, 16))
dist.destroy_process_group()
