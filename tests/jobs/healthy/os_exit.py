# /// truth
# nproc = 2
# healthy = true
# ///
"""All ranks leave by os._exit(0), after their last call."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    dist.all_reduce(tensor)
    time.sleep(0.05)
time.sleep(rank)
os._exit(0)
