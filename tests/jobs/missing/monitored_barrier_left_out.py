# /// truth
# nproc = 3
# quick = ["faulty"]
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "supported"
# cause = "rank-conditional"
# hang = true
# ranks = { root = [2], victims = [0, 1] }
# [healthy]
# ///
"""Rank 2 leaves out one monitored barrier, for which no hook of PyTorch is called.

Healthy: It enters this barrier from a line of its own.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
gradient = torch.ones(128)
for epoch in range(6):
    dist.all_reduce(gradient)  # HERE rank 2
    # if FAULTY
    if rank != 2 or epoch != 3:
        dist.monitored_barrier(wait_all_ranks=True)  # HERE rank 0 1
    # else
    if rank != 2 or epoch != 3:
        dist.monitored_barrier(wait_all_ranks=True)
    else:
        dist.monitored_barrier(wait_all_ranks=True)
    # end
dist.destroy_process_group()
