# /// truth
# nproc = 2
# quick = ["faulty"]
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# says = "holds the GIL"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# seconds = 6
# ///
"""Rank 1 blocks in a C function that keeps the interpreter's lock: no thread of it runs.

Healthy: Rank 1 is in a C function that keeps the interpreter's lock for seconds.
"""

import ctypes

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
blocks = ctypes.PyDLL(None).sleep
for step in range(8):
    if rank == 1 and step == 4:
        # if FAULTY
        blocks(3600)  # HERE rank 1
        # else
        blocks(6)
        # end
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
