# /// truth
# nproc = 3
# healthy = true
# ///
"""Every rank leaves out the same step by itself, since the loss of each is not finite."""

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
    if step == 6:
        loss = loss * float("nan")
    if not torch.isfinite(loss):
        continue
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
