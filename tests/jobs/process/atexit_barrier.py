# /// truth
# nproc = 3
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD205"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Rank 1 is done early, and its atexit waits at a barrier while the others still train.

Healthy: All ranks meet at a barrier in atexit, one of them seconds after the others.
"""

import atexit
import time

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)


@atexit.register
def finish():
    stamp()
    dist.barrier()  # HERE rank 1
    # if HEALTHY
    dist.destroy_process_group()
    # end


# if FAULTY
for step in range(4 if rank == 1 else 8):
# else
for step in range(8):
# end
    stamp()
    dist.all_reduce(tensor)  # HERE rank 0 2
    time.sleep(0.05)
# if HEALTHY
if rank == 1:
    time.sleep(3)
# end
