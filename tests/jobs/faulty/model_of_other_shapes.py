# /// truth
# nproc = 3
# code = "DD404"
# root = [1]
# root_confidence = "supported"
# says = "2.weight float32[5, 32]"
# ///
"""The head of rank 1 has a class more."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)]
if rank == 1:
    layers[2] = torch.nn.Linear(32, 5)
model = DistributedDataParallel(torch.nn.Sequential(*layers))  # HERE rank 0 1 2
for step in range(3):
    model(torch.randn(8, 16)).sum().backward()
dist.destroy_process_group()
