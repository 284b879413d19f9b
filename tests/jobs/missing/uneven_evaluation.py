# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Rank 0 evaluates for longer than rank 1, without any collective, also once by a forward in training mode."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(5 if rank == 0 else 2):
            model(torch.randn(8, 16))
    model.train()
    if rank == 0:
        model(torch.randn(8, 16))  # what a picture of the training is drawn from
dist.destroy_process_group()
