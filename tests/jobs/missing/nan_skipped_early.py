# /// truth
# nproc = 2
#
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "suspected"
# cause = "skipped-iteration"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Rank 1 leaves out one of its last steps: too late for a relation of steps to be established again before it
hangs. The module has buffers, so that the next forward meets a backward.

Healthy: All ranks leave out a step together, and the module has buffers.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(7):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).sum()  # HERE rank 1
    if rank == 1 and step == 5:
        loss = loss * float("nan")
    # if FAULTY
    if not torch.isfinite(loss):
    # else
    bad = (~torch.isfinite(loss)).float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad:
    # end
        continue
    loss.backward()  # HERE rank 0
    optimizer.step()
dist.destroy_process_group()
