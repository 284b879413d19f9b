# /// truth
# nproc = 2
# healthy = true
# ///
"""Every rank has as many batches before the barrier."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

batches = 6
data = TensorDataset(torch.randn(batches * 8, 16), torch.randn(batches * 8, 4))
for inputs, targets in DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
