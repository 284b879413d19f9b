# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Rank 1 has one batch less in every epoch; Join makes up for it."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    with Join([model]):
        for step in range(8 - rank):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).sum().backward()
            optimizer.step()
dist.destroy_process_group()
