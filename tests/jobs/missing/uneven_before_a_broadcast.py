# /// truth
# [scenario.two]
# nproc = 2
# quick = []
# [scenario.two.faulty]
# code = "DD102"
# verdict = "hang"
# cause = "uneven-inputs"
# ranks = { root = [1], victims = [0] }
# [scenario.two.faulty.nccl]
# hang = true
# lines = { 0 = ["loss.backward()"] }
# [scenario.two.healthy]
# [scenario.three]
# nproc = 3
# [scenario.three.faulty]
# code = "DD102"
# verdict = "hang"
# cause = "uneven-inputs"
# ranks = { root = [1], victims = [0, 2] }
# [scenario.three.faulty.nccl]
# hang = true
# lines = { 0 = ["loss.backward()"] }
# [scenario.three.healthy]
# ///
"""Rank 1 has fewer batches and its program ends, before a broadcast whose root is rank 0: uneven_before_a_broadcast.py SCENARIO faulty|healthy

DDP broadcasts the buffers of BatchNorm in every forward. The root does not wait for the ranks that receive; its
call fails once the connection is closed.

Healthy: Every rank has as many batches before its program ends.
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

scenario, kind = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = 6 if kind == "faulty" and rank != 1 else 4
data = TensorDataset(torch.randn(batches * 8, 16), torch.randn(batches * 8, 8))
for inputs, targets in DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    outputs = model(inputs)  # HERE rank 0
    loss = torch.nn.functional.mse_loss(outputs, targets)
    loss.backward()
    optimizer.step()
if scenario == "three" or kind == "healthy":
    dist.destroy_process_group()
