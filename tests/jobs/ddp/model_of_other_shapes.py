# /// truth
# nproc = 3
#
# [faulty]
# code = "DD404"
# cause = "rank-conditional"
# verdict = "crash"
# root_confidence = "supported"
# says = "2.weight float32[5, 32]"
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""The head of rank 1 has a class more.

Healthy: The models of the ranks have names of their own, and the same shapes in the same order.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
# if FAULTY
layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)]
if rank == 1:
    layers[2] = torch.nn.Linear(32, 5)
model = DistributedDataParallel(torch.nn.Sequential(*layers))  # HERE rank 0 1 2
# else
layers = torch.nn.ModuleDict({f"first of {rank}": torch.nn.Linear(16, 32), "second": torch.nn.Linear(32, 4)})
model = DistributedDataParallel(torch.nn.Sequential(*layers.values()))
named = torch.nn.Sequential()
named.add_module(f"layer of {rank}", torch.nn.Linear(4, 4))
other = DistributedDataParallel(named)
# end
for step in range(3):
    # if FAULTY
    model(torch.randn(8, 16)).sum().backward()
    # else
    other(model(torch.randn(8, 16))).sum().backward()
    # end
dist.destroy_process_group()
