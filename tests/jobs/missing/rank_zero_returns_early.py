# /// truth
# nproc = 2
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# cause = "rank-conditional"
# hang = true
# ranks = { root = [0], victims = [1] }
# [healthy]
# ///
"""Rank 0 returns from a function before its broadcast, and goes on.

Healthy: It returns after it.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(8)


def share():
    # if FAULTY
    if rank == 0:
        return
    # end
    dist.broadcast(tensor, 0)  # HERE rank 1
    if rank == 0:
        print("shared")


dist.all_reduce(tensor)
share()
dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
