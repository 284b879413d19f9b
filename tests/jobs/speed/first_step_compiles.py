# /// truth
# nproc = 2
# seconds = 8
#
# [healthy]
# ///
"""Rank 0 builds its kernels in a subprocess during the first step, while the others wait."""

import subprocess
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(16, 4))
for step in range(4):
    if rank == 0 and step == 0:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(8)"], check=True)
    model(torch.randn(8, 16)).sum().backward()
dist.destroy_process_group()
