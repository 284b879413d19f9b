# /// truth
# nproc = 2
#
# [faulty]
# code = "DD404"
# cause = "rank-conditional"
# verdict = "crash"
# root_confidence = "suspected"
# says = "rank 1 has 6 parameters"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""The model of rank 1 has one layer more.

Healthy: The models are the same, but for the values that they begin with.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)]
# if FAULTY
if rank == 1:
    layers.insert(2, torch.nn.Linear(32, 32))
# end
model = DistributedDataParallel(torch.nn.Sequential(*layers))  # HERE rank 0 1
for step in range(3):
    model(torch.randn(8, 16)).sum().backward()
dist.destroy_process_group()
