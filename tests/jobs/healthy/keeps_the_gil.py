# /// truth
# nproc = 2
# healthy = true
# seconds = 6
# ///
"""Rank 1 is in a C function that keeps the interpreter's lock for seconds."""

import ctypes

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
blocks = ctypes.PyDLL(None).sleep
for step in range(8):
    if rank == 1 and step == 4:
        blocks(6)
    dist.all_reduce(tensor)
dist.destroy_process_group()
