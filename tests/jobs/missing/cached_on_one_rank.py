# /// truth
# nproc = 3
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "supported"
# cause = "local-decision"
# why = "is not reached if a result of its function is cached (`@functools.lru_cache(maxsize=None)`"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""A cached function makes a collective. Rank 1 calls it again with an argument that it had before.

Healthy: All ranks call it with the same arguments.
"""

import functools

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


@functools.lru_cache(maxsize=None)
def total(samples):
    tensor = torch.tensor([float(samples)])
    dist.all_reduce(tensor)  # HERE rank 0 2
    return tensor.item()


sizes = [8, 9, 8, 11]
# if FAULTY
if rank != 1:
    sizes[2] = 10
# end
weights = torch.ones(4)
for size in sizes:
    total(size)
    dist.broadcast(weights, 0)  # HERE rank 1
dist.destroy_process_group()
