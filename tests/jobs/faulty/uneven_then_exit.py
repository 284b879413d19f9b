# /// truth
# nproc = 3
# code = "DD102"
# root = [1]
# root_confidence = "proved"
# cause = "uneven-inputs"
# hang = false
# decisive = "stamp"
# ///
"""Rank 1 has two batches less and its program ends while the others still train."""

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

batches = 4 if rank == 1 else 6
data = TensorDataset(torch.randn(batches * 8, 16), torch.randn(batches * 8, 4))
for inputs, targets in DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    stamp()
    loss.backward()  # HERE rank 0 2
    optimizer.step()
stamp()
