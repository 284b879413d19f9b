# /// truth
# nproc = 3
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [2], victims = [0, 1] }
# [healthy]
# ///
"""Rank 2 leaves the loop by its own measure; the others wait for it in a barrier that would name it after a minute.

Healthy: The measure is the same on all ranks.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
best, bad = float("inf"), 0
for epoch in range(6):
    gradient = torch.randn(128)
    dist.all_reduce(gradient)
    # if FAULTY
    loss = 1.0 + 0.1 * epoch if rank == 2 else 1.0 / (epoch + 1)
    # else
    loss = 1.0 + 0.1 * epoch
    # end
    best, bad = (loss, 0) if loss < best else (best, bad + 1)
    if bad >= 3:
        break
    dist.monitored_barrier(timeout=timedelta(seconds=60))  # HERE rank 0 1
total = torch.ones(1)
dist.all_reduce(total)  # HERE rank 2
dist.destroy_process_group()
