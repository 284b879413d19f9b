# /// truth
# nproc = 2
# decisive = "stamp"
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
"""Rank 0 broadcasts from itself and waits, as Gloo's sends do, for rank 1, which takes a lock twice.

Healthy: Rank 1 is a second late.
"""

import threading
import time

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
lock = threading.Lock()
level = torch.ones(256)
for step in range(8):
    if rank == 1 and step == 4:
        # if FAULTY
        stamp()
        lock.acquire()
        lock.acquire()  # HERE rank 1
        # else
        time.sleep(1)
        # end
    dist.broadcast(level, src=0)  # HERE rank 0
dist.destroy_process_group()
