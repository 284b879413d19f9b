# /// truth
# nproc = 3
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Rank 1 sleeps while the others wait for it in a monitored barrier.

Healthy: Rank 1 is a second late.
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(4):
    dist.all_reduce(torch.ones(2))
    if rank == 1 and step == 2:
        # if FAULTY
        time.sleep(3600)  # HERE rank 1
        # else
        time.sleep(1)
        # end
    dist.monitored_barrier(None, wait_all_ranks=True)  # HERE rank 0 2
dist.destroy_process_group()
