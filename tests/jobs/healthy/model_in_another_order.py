# /// truth
# nproc = 2
# healthy = true
# ///
"""Every rank makes the same layers in the same order."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ["first", "second"]:
            self.add_module(name, torch.nn.Linear(16, 16))

    def forward(self, inputs):
        return self.second(torch.relu(self.first(inputs)))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model())
for step in range(3):
    model(torch.randn(8, 16)).sum().backward()
dist.destroy_process_group()
