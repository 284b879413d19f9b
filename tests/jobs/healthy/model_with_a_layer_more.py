# /// truth
# nproc = 2
# healthy = true
# ///
"""The models are the same, but for the values that they begin with."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
for step in range(3):
    model(torch.randn(8, 16)).sum().backward()
dist.destroy_process_group()
