# /// truth
# nproc = 3
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Ranks 0 and 2 share a table in the handler of the exception that says it is missing; rank 1 has one of its own.

Healthy: The table is missing on all ranks.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tables = {}
# if FAULTY
if rank == 1:
    tables["evaluation"] = torch.ones(8)
# end


def table(name):
    try:
        return tables[name]
    except KeyError:
        value = torch.full((8,), float(rank))
        dist.broadcast(value, 0)  # HERE rank 0 2
        tables[name] = value
        return value


for name in ("evaluation", "test"):
    total = table(name).sum()
    dist.barrier()  # HERE rank 1
dist.destroy_process_group()
