# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# cause = "rank-conditional"
# hang = true
# ranks = { root = [0], victims = [1] }
# [healthy]
# ///
"""Rank 0 alone evaluates through DDP, in training mode, where every forward broadcasts BatchNorm's buffers.

Healthy: Rank 0 alone evaluates the module inside DDP, which does not communicate.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from support.stamp import stamp

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
        # if FAULTY
        model(torch.randn(8, 16))
        # else
        with torch.no_grad():
            model.module(torch.randn(8, 16))
        # end
dist.destroy_process_group()
