# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# seconds = 30
# run_options = ["--stall-after", "8"]
# code = "DD101"
# verdict = "hang"
# root_confidence = "supported"
# ranks = { root = [1], victims = [0] }
# [healthy]
# seconds = 6
# ///
"""Rank 1 looks for a solution that does not exist, while rank 0 waits until it gives up: busy, and never done.

Healthy: Rank 1 computes for seconds, busy at one line, while rank 0 waits.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
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
