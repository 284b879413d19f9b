# /// truth
# nproc = 2
#
# [faulty]
# code = "DD403"
# verdict = "crash"
# says = "ready twice"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""A layer is checkpointed twice in one forward, by reentrant backwards, and DDP looks for unused parameters.

Healthy: A layer is checkpointed twice in one forward, without reentrant backwards.
"""

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
            # if FAULTY
            hidden = checkpoint(self.twice, hidden, use_reentrant=True)
            # else
            hidden = checkpoint(self.twice, hidden, use_reentrant=False)
            # end
        return hidden


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
# if FAULTY
model = DistributedDataParallel(Model(), find_unused_parameters=True)
# else
model = DistributedDataParallel(Model())
# end
for step in range(4):
    loss = model(torch.randn(8, 16)).sum()
    loss.backward()  # HERE rank 0 1
dist.destroy_process_group()
