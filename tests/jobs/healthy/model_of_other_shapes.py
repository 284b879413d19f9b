# /// truth
# nproc = 3
# healthy = true
# ///
"""The models of the ranks have names of their own, and the same shapes in the same order."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layers = torch.nn.ModuleDict({f"first of {rank}": torch.nn.Linear(16, 32), "second": torch.nn.Linear(32, 4)})
model = DistributedDataParallel(torch.nn.Sequential(*layers.values()))
named = torch.nn.Sequential()
named.add_module(f"layer of {rank}", torch.nn.Linear(4, 4))
other = DistributedDataParallel(named)
for step in range(3):
    other(model(torch.randn(8, 16))).sum().backward()
dist.destroy_process_group()
