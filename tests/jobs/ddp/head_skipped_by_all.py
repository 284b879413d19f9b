# /// truth
# nproc = 2
#
# [faulty]
# code = "DD401"
# verdict = "crash"
# says = "head.weight, head.bias"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""No rank uses the head: DDP raises at the next forward, with indices alone.

Healthy: No rank uses the head, which was frozen before the model was wrapped.
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
        return self.head(hidden) if with_head else hidden


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
# if FAULTY
model = DistributedDataParallel(Model())
# else
model = Model()
model.head.requires_grad_(False)
model = DistributedDataParallel(model)
# end
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16), False).sum()
    loss.backward()  # HERE rank 0 1
    optimizer.step()
dist.destroy_process_group()
