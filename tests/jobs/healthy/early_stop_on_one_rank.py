# /// truth
# nproc = 2
# healthy = true
# ///
"""The ranks agree by an all_reduce when to stop."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
best, patience = float("inf"), 0
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).pow(2).sum()
    loss.backward()
    optimizer.step()
    worse = (step >= 2) if rank else False
    patience = patience + 1 if worse else 0
    votes = torch.tensor([float(patience)])
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    patience = int(votes)
    if patience >= 3:
        break
dist.barrier()
dist.destroy_process_group()
