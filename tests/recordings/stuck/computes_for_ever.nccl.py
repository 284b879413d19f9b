# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD101"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0] }
# [faulty.nccl]
# # It was ended long before the timeout of its group, for what is a suspicion.
# confidence = "suspected"
# [healthy]
# seconds = 6
# ///
"""Rank 1 looks for a solution that does not exist, while rank 0 waits: busy, and never done.

Healthy: Rank 1 computes for seconds, busy at one line, while rank 0 waits.
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
        guess = 1.0
        while guess * guess != 2.0:
            guess = (guess + 2.0 / guess) / 2.0
        # else
        end = time.monotonic() + 6
        while time.monotonic() < end:
            pass
        # end
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
dist.destroy_process_group()
