# /// truth
# nproc = 3
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "supported"
# cause = "swallowed-exception"
# why = "depends on whether an exception is caught"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Rank 1 cannot read a sample, prints the exception and goes on without the backward of that step.

Healthy: It takes another sample instead.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def sample(i):
    if rank == 1 and i == 4:
        raise ValueError("corrupt sample")
    return torch.randn(8, 16)


for i in range(8):
    try:
        # if FAULTY
        inputs = sample(i)
        # else
        try:
            inputs = sample(i)
        except ValueError:
            inputs = sample(0)
        # end
        optimizer.zero_grad()
        model(inputs).sum().backward()  # HERE rank 0 2
        optimizer.step()
    except ValueError as error:
        print("skipped", i, error)
    if i % 2 == 0:
        dist.broadcast(torch.ones(2, 2), 0)  # HERE rank 1
dist.destroy_process_group()
