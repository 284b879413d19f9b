# /// truth
# nproc = 2
# launcher = "torchrun"
# seconds = 12
#
# [healthy]
# ///
"""Rank 1 takes twelve seconds before it joins, as a cold file system does."""

import os
import time

import torch
import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(12)
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
