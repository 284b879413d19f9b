# /// truth
# nproc = 2
#
# [faulty]
# code = "DD402"
# cause = "rank-conditional"
# verdict = "hang"
# says = "rank 1 has no gradient for head.weight, head.bias"
# why = "Rank 1 had all of them in 3 backwards before: what the forward uses there changes from step to step."
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""In the last step rank 1 has nothing for the head to do. It goes on to a barrier, and there is no forward any more that could raise.

Healthy: In the last step rank 1 has nothing for the head to do, and lets it take part, times zero.
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
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16), not (rank == 1 and step == 3)).sum()
    loss.backward()  # HERE rank 0 1
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
