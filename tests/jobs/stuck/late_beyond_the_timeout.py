# /// truth
# nproc = 2
#
# [faulty]
# seconds = 20
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# ranks = { root = [1], victims = [0] }
# [faulty.nccl]
# hang = true
# [healthy]
# seconds = 10
# ///
"""Rank 1 sleeps until rank 0's call times out: whoever raises is not whose fault it is.

Healthy: Rank 1 is later than the group's first timeout, which was set anew before.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

# if FAULTY
dist.init_process_group("gloo", timeout=timedelta(seconds=10))
# else
dist.init_process_group("gloo", timeout=timedelta(seconds=5))
# end
rank = dist.get_rank()
tensor = torch.ones(8)
# if HEALTHY
dist.all_reduce(tensor)
dist.set_timeout(timedelta(seconds=60))
# end
for step in range(8):
    if rank == 1 and step == 4:
        # if FAULTY
        time.sleep(3600)  # HERE rank 1
        # else
        time.sleep(8)
        # end
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
