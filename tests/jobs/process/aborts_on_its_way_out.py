# /// truth
# nproc = 2
# quick = ["faulty"]
#
# [faulty]
# code = "DD201"
# verdict = "crash"
# root_confidence = "proved"
# says = "while exiting"
# ranks = { root = [1], victims = [] }
# [healthy]
# ///
"""Rank 1 aborts when its program has ended, and torchrun ends rank 0, which is still on its way out.

Healthy: Rank 1 ends before rank 0, which is still on its way out.
"""

import atexit
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
# if FAULTY
if rank == 1:
    atexit.register(os.abort)
else:
    atexit.register(time.sleep, 60)
# else
if rank == 0:
    atexit.register(time.sleep, 1)
# end
for _ in range(4):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
