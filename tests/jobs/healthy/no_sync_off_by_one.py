# /// truth
# nproc = 2
# healthy = true
# ///
"""Gradients are averaged after every third micro-batch. All ranks count them alike."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(8):
    model.require_backward_grad_sync = (batch + 1) % 3 == 0
    model(torch.randn(8, 16)).sum().backward()
    if model.require_backward_grad_sync:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
