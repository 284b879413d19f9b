# /// truth
# nproc = 3
# quick = []
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# cause = "rank-conditional"
# hang = true
# ranks = { root = [0], victims = [1, 2] }
# [healthy]
# ///
"""Rank 0 alone enters a barrier in the middle of the training.

Healthy: All ranks enter the barrier, one of them from a line of its own.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).sum()
    loss.backward()  # HERE rank 1 2
    optimizer.step()
    # if FAULTY
    if rank == 0 and step == 4:
        dist.barrier()  # HERE rank 0
    # else
    if step == 4:
        if rank == 0:
            dist.barrier()
        else:
            dist.barrier()
    # end
dist.destroy_process_group()
