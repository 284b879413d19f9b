# /// truth
# nproc = 3
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD102"
# verdict = "hang"
# root_confidence = "proved"
# cause = "uneven-inputs"
# ranks = { root = [1], victims = [0, 2] }
# [faulty.nccl]
# hang = true
# [healthy]
# ///
"""Rank 1 has two batches less and its program ends while the others still train.

Healthy: Every rank has as many batches before its program ends.
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
batches = 4 if rank == 1 else 6
# else
batches = 6
# end
data = TensorDataset(torch.randn(batches * 8, 16), torch.randn(batches * 8, 4))
for inputs, targets in DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    stamp()
    loss.backward()  # HERE rank 0 2
    optimizer.step()
# if HEALTHY
dist.destroy_process_group()
# end
stamp()
