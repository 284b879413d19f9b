# /// truth
# nproc = 2
# code = "DD403"
# root = [0, 1]
# says = "ready twice"
# ///
"""A layer is checkpointed twice in one forward, by reentrant backwards, and DDP looks for unused parameters."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.twice = torch.nn.Linear(16, 16)

    def forward(self, inputs):
        hidden = self.first(inputs)
        for _ in range(2):
            hidden = checkpoint(self.twice, hidden, use_reentrant=True)
        return hidden


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model(), find_unused_parameters=True)
for step in range(4):
    loss = model(torch.randn(8, 16)).sum()
    loss.backward()  # HERE rank 0 1
dist.destroy_process_group()
