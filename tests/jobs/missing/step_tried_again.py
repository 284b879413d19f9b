# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Rank 1 runs a forward again on the same batch, and draws a batch again that is too short: ranks stay together."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def batches():
    for inputs, in DataLoader(TensorDataset(torch.randn(16 * 8, 16)), batch_size=8):
        yield inputs


for epoch in range(2):
    drawn = batches()
    for step in range(14):
        inputs = next(drawn)
        if rank == 1 and step == 4:
            inputs = next(drawn)
        optimizer.zero_grad()
        for attempt in range(2):
            loss = model(inputs.clone()).sum()
            if not (rank == 1 and step == 9 and attempt == 0):
                break
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
