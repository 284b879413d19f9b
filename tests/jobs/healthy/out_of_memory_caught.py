# /// truth
# nproc = 3
# healthy = true
# ///
"""One batch of rank 2 needs more memory than there is. It catches that, and makes the step with a shorter one."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, inputs, length):
        torch.empty(length, dtype=torch.uint8)
        return self.linear(inputs)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    optimizer.zero_grad()
    inputs = torch.randn(8, 16)
    length = 1 << 58 if rank == 2 and step == 6 else 1 << 10
    try:
        loss = model(inputs, length).sum()
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        loss = model(inputs, 1 << 10).sum()
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
