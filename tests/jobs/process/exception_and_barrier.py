# /// truth
# nproc = 2
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD202"
# verdict = "crash"
# root_confidence = "proved"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 raises, and on its way out waits for everybody at a barrier.

Healthy: An exception that is dealt with before anybody communicates.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
try:
    for step in range(8):
        # if FAULTY
        if rank == 1 and step == 4:
            raise ValueError("a broken sample")  # HERE rank 1
        # else
        try:
            if rank == 1 and step == 4:
                raise ValueError("a broken sample")
        except ValueError:
            tensor.fill_(1)
        # end
        stamp()
        dist.all_reduce(tensor)  # HERE rank 0
finally:
    stamp()
    dist.barrier()
    dist.destroy_process_group()
