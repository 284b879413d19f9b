# /// truth
# nproc = 2
# healthy = true
# ///
"""From the third step on the ranks leave the head out by turns, and let it take part all the same, times zero."""

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
        output = self.head(hidden)
        return output if with_head else hidden + 0 * output.sum()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16), step < 2 or step % 2 != rank).sum()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
