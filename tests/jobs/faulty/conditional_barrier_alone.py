# /// truth
# nproc = 2
# code = "DD117"
# root = [0]
# root_confidence = "supported"
# cause = "rank-conditional"
# hang = true
# run_options = ["--stall-after", "4"]
# ///
"""Rank 0 returns late from a function that rank 1 left before the barrier; rank 1 makes no further call."""

import time

import torch
import torch.distributed as dist

def report():
    if rank != 0:
        return
    dist.barrier()  # HERE rank 0


dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
report()
time.sleep(60)
dist.destroy_process_group()
