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
"""Rank 0 alone saves a checkpoint, and saving contains a collective.

Healthy: Every rank takes part in saving.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def save():
    """Asks every rank for its share of the metrics."""
    shares = [torch.zeros(1) for _ in range(dist.get_world_size())]
    stamp()
    dist.all_gather(shares, torch.full((1,), float(rank)))  # HERE rank 0
    return shares


for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).sum()
    stamp()
    loss.backward()  # HERE rank 1
    optimizer.step()
    # if FAULTY
    if rank == 0 and step == 3:
    # else
    if step == 3:
    # end
        save()
dist.destroy_process_group()
