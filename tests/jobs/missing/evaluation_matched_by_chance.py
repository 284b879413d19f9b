# /// truth
# nproc = 2
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# cause = "rank-conditional"
# ranks = { root = [0], victims = [1] }
# [healthy]
# ///
"""Rank 0 evaluates through DDP after each epoch. DDP broadcasts its buffers there, and not in the forward after it:
the broadcast matches that of rank 1's next forward, until rank 1 has ended.

Healthy: Rank 0 evaluates the module itself.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
model = DistributedDataParallel(module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@torch.no_grad()
def evaluate():
    # if FAULTY
    return model(torch.randn(8, 16)).sum()  # HERE rank 0
    # else
    return module(torch.randn(8, 16)).sum()
    # end


for epoch in range(3):
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
    if rank == 0:
        evaluate()
dist.destroy_process_group()  # HERE rank 1
