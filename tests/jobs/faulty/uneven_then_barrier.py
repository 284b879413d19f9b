# /// truth
# nproc = 2
# code = "DD103"
# root = [0, 1]
# root_confidence = "suspected"
# cause = "uneven-inputs"
# hang = true
# decisive = "stamp"
# ///
"""Rank 1 has two batches less and goes on to a barrier while rank 0 still trains."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def stamp():
    """Tells the test when the decisive call was made."""
    path = os.environ.get("DDP_DOCTOR_TEST_STAMP")
    if path:
        with open(f"{path}.{rank}", "w") as file:
            file.write(str(time.time_ns()))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

batches = 6 if rank == 0 else 4
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
