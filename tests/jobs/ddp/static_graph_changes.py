# /// truth
# nproc = 2
#
# [faulty]
# code = "DD403"
# verdict = "crash"
# says = "although the model was wrapped with static_graph=True (head.weight, head.bias)"
# why = "which runs only if `with_head` is true (line "
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""The graph was promised to stay the same, and from the third step on every rank leaves the head out.

Healthy: The graph was promised to stay the same, and does: the head is left out in every step.
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
        if with_head:
            return self.head(hidden)
        return hidden


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model(), static_graph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    # if FAULTY
    loss = model(torch.randn(8, 16), step < 2).sum()
    # else
    loss = model(torch.randn(8, 16), False).sum()
    # end
    loss.backward()  # HERE rank 0 1
    optimizer.step()
dist.destroy_process_group()
