# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Batches differ in size from rank to rank; what is communicated does not."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(4 + 3 * rank + step, 16)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
