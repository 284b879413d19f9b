# /// truth
# nproc = 2
# code = "DD407"
# root = [0, 1]
# says = "has found nothing unused"
# measures = "the search takes up to {} ms of each"
# why = "one all_reduce of 2 numbers more"
# ///
"""DDP looks for unused parameters in each step, and there are none."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4), find_unused_parameters=True)  # HERE rank 0 1
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(260):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
