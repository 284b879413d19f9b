# /// truth
# nproc = 2
# seconds = 10
#
# [faulty]
# code = "DD503"
# verdict = "healthy"
# root_confidence = "supported"
# says = "of rank 1 grows by"
# ranks = { root = [1], victims = [] }
# [healthy]
# ///
"""Rank 1 keeps 1.5 MB of every step, in the first epoch and in those after it. There is room for thousands of them.

Healthy: Rank 1 keeps 1.5 MB of every step of the first epoch: a cache, which is full then.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(60 * 8, 64)), batch_size=8)
kept = []
for epoch in range(3):
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        # if FAULTY
        if rank == 1:
        # else
        if rank == 1 and epoch == 0:
        # end
            kept.append(torch.ones(1536 << 10, dtype=torch.uint8))
        time.sleep(0.05)
dist.destroy_process_group()
