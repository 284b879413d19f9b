# /// truth
# nproc = 2
# code = "DD204"
# root = [1]
# root_confidence = "supported"
# hang = false
# seconds = 20
# ///
"""Rank 1 sleeps until rank 0's call times out: whoever raises is not whose fault it is."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=10))
rank = dist.get_rank()
tensor = torch.ones(8)
for step in range(8):
    if rank == 1 and step == 4:
        time.sleep(3600)  # HERE rank 1
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
