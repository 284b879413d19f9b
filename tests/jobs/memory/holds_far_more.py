# /// truth
# nproc = 2
#
# [faulty]
# code = "DD505"
# verdict = "healthy"
# root_confidence = "supported"
# says = "rank 0 holds"
# ranks = { root = [0], victims = [] }
# [healthy]
# ///
"""Rank 0 keeps 2.5 GB beside what all ranks need.

Healthy: Rank 0 keeps 500 MB beside what all ranks need.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
# if FAULTY
held = torch.ones((2500 if rank == 0 else 1) << 20, dtype=torch.uint8)
# else
held = torch.ones((500 if rank == 0 else 1) << 20, dtype=torch.uint8)
# end
dist.barrier()
time.sleep(1.5)
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.1)
dist.destroy_process_group()
