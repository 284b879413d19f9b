# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Two heads have a loss each, and each loss a backward of its own: the gradients of the second head come in the second one."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(16, 32)
        self.one = torch.nn.Linear(32, 4)
        self.other = torch.nn.Linear(32, 4)

    def forward(self, inputs):
        hidden = torch.relu(self.body(inputs))
        return self.one(hidden.detach()), self.other(hidden)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model())
for step in range(14):
    one, other = model(torch.randn(8, 16))
    one.sum().backward()
    dist.all_reduce(torch.ones(1))
    other.sum().backward()
dist.destroy_process_group()
