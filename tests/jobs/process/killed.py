# /// truth
# nproc = 2
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD201"
# verdict = "crash"
# root_confidence = "proved"
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 is killed in the middle of the training.

Healthy: Nobody is killed.
"""

import os
import signal
import time

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    # if FAULTY
    if rank == 1 and step == 4:
        stamp()
        os.kill(os.getpid(), signal.SIGKILL)
    # end
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
dist.destroy_process_group()
