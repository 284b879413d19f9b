# /// truth
# nproc = 3
# [faulty]
# seconds = 20
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Rank 1 sleeps until the monitored barrier of the other ranks raises. They are victims, although they raise first.

Healthy: Rank 1 is late, but not beyond the timeout.
"""

import time
from datetime import timedelta

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
        time.sleep(2)
        # end
    dist.monitored_barrier(timeout=timedelta(seconds=10), wait_all_ranks=True)  # HERE rank 0 2
dist.destroy_process_group()
