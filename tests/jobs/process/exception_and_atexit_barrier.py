# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD202"
# verdict = "crash"
# root_confidence = "proved"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""An exception ends rank 1, whose atexit waits at a barrier: its process never ends.

Healthy: An exception that rank 1 deals with; all ranks meet at a barrier in atexit.
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
    dist.barrier()
    # if HEALTHY
    dist.destroy_process_group()
    # end


for step in range(8):
    # if FAULTY
    if rank == 1 and step == 4:
        raise ValueError("a broken sample")  # HERE rank 1
    # else
    try:
        if rank == 1 and step == 4:
            raise ValueError("a broken sample")
    except ValueError:
        time.sleep(0.5)
    # end
    stamp()
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
