# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "suspected"
# cause = "uneven-inputs"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Rank 1 has two batches less and goes on to a barrier while rank 0 still trains.

Healthy: Every rank has as many batches before the barrier.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

# if FAULTY
batches = 6 if rank == 0 else 4
# else
batches = 6
# end
data = TensorDataset(torch.randn(batches * 8, 16), torch.randn(batches * 8, 4))
for inputs, targets in DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    stamp()
    loss.backward()  # HERE rank 0
    optimizer.step()
stamp()
dist.barrier()  # HERE rank 1
dist.destroy_process_group()
