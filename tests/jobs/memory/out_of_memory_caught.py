# /// truth
# nproc = 3
#
# [faulty]
# code = "DD501"
# verdict = "hang"
# root_confidence = "proved"
# says = "caught the error and continued"
# hang = true
# ranks = { root = [2], victims = [0, 1] }
# [healthy]
# ///
"""One batch of rank 2 needs more memory than there is. It catches that, leaves the batch out and goes on, its peers
average another step with its next one, and at the end it waits at the barrier, they for its last gradients.

Healthy: One batch of rank 2 needs more memory than there is. It catches that, and makes the step with a shorter one.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, inputs, length):
        torch.empty(length, dtype=torch.uint8)  # HERE rank 2
        return self.linear(inputs)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
# if FAULTY
for step, (inputs,) in enumerate(DataLoader(TensorDataset(torch.randn(14 * 8, 16)), batch_size=8)):
# else
for step in range(14):
# end
    optimizer.zero_grad()
    # if HEALTHY
    inputs = torch.randn(8, 16)
    # end
    length = 1 << 58 if rank == 2 and step == 6 else 1 << 10
    try:
        loss = model(inputs, length).sum()
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        # if FAULTY
        continue
        # else
        loss = model(inputs, 1 << 10).sum()
        # end
    loss.backward()  # HERE rank 0 1
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
