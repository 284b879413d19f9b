# /// truth
# nproc = 2
# code = "DD402"
# root = [0]
# root_confidence = "supported"
# says = "rank 0 has no gradient for head.weight, head.bias"
# why = "Rank 0 had all of them in 2 backwards before: what the forward uses there changes from step to step."
# ///
"""From the third step on the ranks leave the head out by turns, rank 0 first."""

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
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16), step < 2 or step % 2 != rank).sum()
    loss.backward()  # HERE rank 0 1
    optimizer.step()
dist.destroy_process_group()
