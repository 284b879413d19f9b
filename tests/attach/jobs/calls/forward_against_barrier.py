"""/// truth
nproc = 2
quick = true
codes = ["DD103", "DD117"]
root = [0]
///"""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
model(torch.ones(4, 8)).sum().backward()
if dist.get_rank() == 0:
    model(torch.ones(4, 8))  # HERE rank 0
dist.barrier()  # HERE rank 1
