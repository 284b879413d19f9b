# /// truth
# nproc = 2
# healthy = true
# ///
"""Every rank takes part in saving."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def save():
    """Asks every rank for its share of the metrics."""
    shares = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(shares, torch.full((1,), float(rank)))
    return shares


for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).sum()
    loss.backward()
    optimizer.step()
    if step == 3:
        save()
dist.destroy_process_group()
