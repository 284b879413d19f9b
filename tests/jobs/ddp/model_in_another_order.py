# /// truth
# nproc = 2
#
# [faulty]
# code = "DD404"
# cause = "rank-conditional"
# verdict = "wrong"
# root_confidence = "suspected"
# says = "rank 1 has second.weight float32[16, 16]"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Rank 1 makes the same layers in another order: each gets the values and the gradients of the other, and nothing fails.

Healthy: Every rank makes the same layers in the same order.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # if FAULTY
        for name in (["second", "first"] if dist.get_rank() == 1 else ["first", "second"]):
        # else
        for name in ["first", "second"]:
        # end
            self.add_module(name, torch.nn.Linear(16, 16))

    def forward(self, inputs):
        return self.second(torch.relu(self.first(inputs)))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model())  # HERE rank 0 1
for step in range(3):
    model(torch.randn(8, 16)).sum().backward()
dist.destroy_process_group()
