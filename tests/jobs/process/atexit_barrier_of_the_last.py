# /// truth
# nproc = 3
# decisive = "stamp"
#
# [faulty]
# code = "DD205"
# verdict = "hang"
# root_confidence = "supported"
# ranks = { root = [1], victims = [] }
# [faulty.nccl]
# hang = true
# [healthy]
# ///
"""Rank 1 alone has an atexit that waits at a barrier; the others have long ended.

Healthy: Rank 1 has an atexit that writes its results, long after the others have ended.
"""

import atexit
import time

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    dist.all_reduce(tensor)
    time.sleep(0.05)
# if HEALTHY
dist.barrier()
# end
if rank == 1:
    # if FAULTY
    time.sleep(3)
    # end

    @atexit.register
    def finish():
        # if FAULTY
        stamp()
        dist.barrier()  # HERE rank 1
        # else
        time.sleep(3)
        torch.save(tensor, "/dev/null")
        # end
