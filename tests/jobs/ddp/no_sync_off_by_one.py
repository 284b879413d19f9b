# /// truth
# nproc = 2
# quick = []
# [faulty]
# code = "DD406"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "suspected"
# says = "training forward 7"
# ranks = { root = [0, 1], victims = [] }
# [faulty.nccl]
# hang = true
# [healthy]
# ///
"""Gradients are averaged after every third micro-batch. Rank 1 counts them from another start, and averages once more.

Healthy: Gradients are averaged after every third micro-batch. All ranks count them alike.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(8):
    # if FAULTY
    model.require_backward_grad_sync = (batch + 1 if rank == 0 else batch) % 3 == 0
    # else
    model.require_backward_grad_sync = (batch + 1) % 3 == 0
    # end
    model(torch.randn(8, 16)).sum().backward()  # HERE rank 1
    if model.require_backward_grad_sync:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
