# /// truth
# nproc = 2
# quick = ["faulty"]
# [faulty]
# code = "DD402"
# ranks = { root = [1] }
# root_confidence = "supported"
# cause = "rank-conditional"
# says = "rank 1 has no gradient for head.weight, head.bias"
# why = "head.weight and head.bias are used at head_skipped_by_one_rank.py:{line}, which runs only if `with_head` is true (line {line})."
#
# [healthy]
# ///
"""In one step, rank 1 has nothing for the head to do: rank 0 waits for a bucket that never comes.

Healthy: In one step, rank 1 has nothing for the head to do, and DDP was told that this may be.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(16, 32)
        self.head = torch.nn.Linear(32, 4)

    def forward(self, inputs, with_head):
        hidden = torch.relu(self.body(inputs))
        return self.head(hidden) if with_head else hidden  # LINE


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
# if FAULTY
model = DistributedDataParallel(Model())
# else
model = DistributedDataParallel(Model(), find_unused_parameters=True)
# end
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16), not (rank == 1 and step == 5)).sum()
    loss.backward()  # HERE rank 0 1
    optimizer.step()
dist.destroy_process_group()
