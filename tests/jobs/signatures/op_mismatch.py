# /// truth
# nproc = 2
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD103"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "suspected"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Rank 0 reduces to rank 0, rank 1 reduces to all.

Healthy: Both ranks reduce to all, from different lines.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
stamp()
if rank == 0:
    # if FAULTY
    dist.reduce(tensor, 0)  # HERE rank 0
    # else
    dist.all_reduce(tensor)
    # end
else:
    dist.all_reduce(tensor)  # HERE rank 1
dist.destroy_process_group()
