# /// truth
# nproc = 2
# decisive = "stamp"
# quick = ["faulty"]
# alone = true
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 sleeps outside any collective while rank 0 waits.

Healthy: Rank 1 is a second late.
"""

import time

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    if rank == 1 and step == 4:
        # if FAULTY
        stamp()
        time.sleep(3600)  # HERE rank 1
        # else
        time.sleep(1)
        # end
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
dist.destroy_process_group()
