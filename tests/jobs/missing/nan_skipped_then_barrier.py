# /// truth
# nproc = 3
#
# [faulty]
# code = "DD110"
# verdict = "wrong"
# root_confidence = "supported"
# cause = "skipped-iteration"
# hang = true
# ranks = { root = [2], victims = [0, 1] }
# [healthy]
# ///
"""Rank 2 of three leaves out a step and goes on. The job hangs only at its end, when rank 2 is at the barrier.

Healthy: Every rank leaves out the same step by itself, since the loss of each is not finite.
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
    # if FAULTY
    if rank == 2 and step == 6:
    # else
    if step == 6:
    # end
        loss = loss * float("nan")
    if not torch.isfinite(loss):
        continue
    loss.backward()  # HERE rank 0 1 2
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
