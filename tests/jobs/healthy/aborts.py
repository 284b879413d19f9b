# /// truth
# nproc = 2
# healthy = true
# ///
"""A program that rank 1 starts aborts, and rank 1 goes on without its result."""

import subprocess
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    if rank == 1 and step == 4:
        assert subprocess.run([sys.executable, "-c", "import os; os.abort()"]).returncode == -6
    dist.all_reduce(tensor)
    time.sleep(0.05)
dist.destroy_process_group()
