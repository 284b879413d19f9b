# /// truth
# nproc = 2
#
# [faulty]
# code = "DD402"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "supported"
# says = "rank 0 has no gradient for head.weight, head.bias"
# why = "Rank 0 had all of them in 2 backwards before: what the forward uses there changes from step to step."
# ranks = { root = [0], victims = [1] }
# [healthy]
# ///
"""From the third step on the ranks leave the head out by turns, rank 0 first.

Healthy: From the third step on the ranks leave the head out by turns, and let it take part all the same, times zero.
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
        # if FAULTY
        return self.head(hidden) if with_head else hidden
        # else
        output = self.head(hidden)
        return output if with_head else hidden + 0 * output.sum()
        # end


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
