# /// truth
# nproc = 2
# healthy = true
# ///
"""All ranks leave out a step together where the loss of one of them is not finite."""

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
    bad = (~torch.isfinite(loss)).float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad:
        continue
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
