# /// truth
# nproc = 2
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD203"
# verdict = "hang"
# root_confidence = "proved"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 is stopped in the middle of the training.

Healthy: Nobody is stopped.
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
        os.kill(os.getpid(), signal.SIGSTOP)
    # end
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
dist.destroy_process_group()
