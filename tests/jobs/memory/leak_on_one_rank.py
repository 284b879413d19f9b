# /// truth
# nproc = 2
# seconds = 10
#
# [faulty]
# code = "DD502"
# verdict = "healthy"
# root_confidence = "supported"
# says = "out of memory in about"
# ranks = { root = [1], victims = [] }
# [healthy]
# ///
"""Rank 1 keeps 20 MB of every step, and may take 1.4 GB more than it had in the beginning. The job ends before that.

Healthy: Rank 1 keeps 20 MB of every step, gives all of it back after every twelfth, and may take 1.4 GB more than it had in
the beginning.
"""

import resource
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if rank == 1:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + (1400 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
outputs = []
for step in range(45):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    if rank == 1:
        outputs.append(torch.ones(20 << 20, dtype=torch.uint8))
        # if HEALTHY
        if len(outputs) == 12:
            outputs.clear()
        # end
    time.sleep(0.2)
dist.destroy_process_group()
