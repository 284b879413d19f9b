# /// truth
# nproc = 3
# quick = []
# [healthy]
# ///
"""Rank 1 has fewer batches, inside Join: it shadows the collectives of the others."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
batches = 4 if rank == 1 else 6
data = TensorDataset(torch.randn(batches * 8, 16), torch.randn(batches * 8, 4))
with Join([model]):
    for inputs, targets in DataLoader(data, batch_size=8):
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
dist.destroy_process_group()
