# /// truth
# nproc = 2
#
# [faulty]
# code = "DD110"
# verdict = "wrong"
# root_confidence = "supported"
# cause = "skipped-iteration"
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 leaves out a step whose loss is not finite, and goes on: all later gradients are paired one step off. At
the end rank 0 has one step too many.

Healthy: All ranks leave out a step together where the loss of one of them is not finite.
"""

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
    loss = model(torch.randn(8, 16)).sum()
    if rank == 1 and step == 6:
        loss = loss * float("nan")
    # if FAULTY
    if not torch.isfinite(loss):
    # else
    bad = (~torch.isfinite(loss)).float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad:
    # end
        continue
    loss.backward()  # HERE rank 0 1
    optimizer.step()
dist.destroy_process_group()
