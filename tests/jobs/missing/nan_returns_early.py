# /// truth
# nproc = 3
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "supported"
# cause = "skipped-iteration"
# why = "is not reached if `torch.isnan(loss)` is true"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Rank 1 returns from its step before the backward, because its loss is not a number.

Healthy: The loss is replaced by zero instead.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(step):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).sum()
    if rank == 1 and step == 1:
        loss = loss * float("nan")
    # if FAULTY
    if torch.isnan(loss):
        return
    # else
    loss = torch.nan_to_num(loss)
    # end
    loss.backward()  # HERE rank 0 2
    optimizer.step()


for step in range(4):
    train_step(step)
    dist.broadcast(torch.zeros(1), 0)  # HERE rank 1
dist.destroy_process_group()
