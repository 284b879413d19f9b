# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Gradients are accumulated without synchronisation over micro-batches, of which rank 1 once has one more."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    optimizer.zero_grad()
    micro_batches = 3 if step > 3 else 1
    if rank == 1 and step == 8:
        micro_batches += 1
    with model.no_sync():
        for _ in range(micro_batches - 1):
            model(torch.randn(8, 16)).sum().backward()
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
