# /// truth
# nproc = 2
#
# [faulty]
# code = "DD407"
# verdict = "slow"
# says = "has found no unused parameter"
# measures = "the search takes up to {} ms of each"
# why = "an additional all_reduce of 2 elements"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""DDP looks for unused parameters in each step, and there are none.

Healthy: DDP looks for unused parameters in each step, and rank 1 leaves the head out in every third.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# if HEALTHY
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(16, 32)
        self.head = torch.nn.Linear(32, 4)

    def forward(self, inputs, with_head):
        hidden = torch.relu(self.body(inputs))
        return self.head(hidden) if with_head else hidden


# end
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
# if FAULTY
model = DistributedDataParallel(torch.nn.Linear(16, 4), find_unused_parameters=True)  # HERE rank 0 1
# else
model = DistributedDataParallel(Model(), find_unused_parameters=True)
# end
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(260):
    optimizer.zero_grad()
    # if FAULTY
    model(torch.randn(8, 16)).sum().backward()
    # else
    model(torch.randn(8, 16), rank == 0 or step % 3 > 0).sum().backward()
    # end
    optimizer.step()
dist.destroy_process_group()
