# /// truth
# nproc = 2
# healthy = true
# ///
"""A layer is checkpointed twice in one forward, without reentrant backwards."""

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
            hidden = checkpoint(self.twice, hidden, use_reentrant=False)
        return hidden


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model())
for step in range(4):
    loss = model(torch.randn(8, 16)).sum()
    loss.backward()
dist.destroy_process_group()
