# /// truth
# nproc = 3
# decisive = "stamp"
#
# [faulty]
# code = "DD205"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Rank 1 decides alone to stop by sys.exit, and its finally waits at a barrier.

Healthy: All ranks agree to stop by sys.exit, and meet in their finally.
"""

import sys
import time

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
# if HEALTHY
stop = torch.zeros(1)
# end
try:
    for step in range(8):
        # if FAULTY
        if rank == 1 and step == 4:
        # else
        stop[0] = rank == 1 and step == 4
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            time.sleep(rank)
        # end
            sys.exit(0)
        stamp()
        dist.all_reduce(tensor)  # HERE rank 0 2
finally:
    stamp()
    dist.barrier()  # HERE rank 1
    dist.destroy_process_group()
