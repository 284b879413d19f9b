# /// truth
# nproc = 3
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "supported"
# cause = "local-decision"
# why = "is in a loop whose length depends on `os.path.exists(path)`"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Rank 1 finds no checkpoint on its disk and begins at the first step, the others resume at step 3.

Healthy: All ranks find one.
"""

import os
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
path = os.path.join(tempfile.mkdtemp(), "last.pt")
# if FAULTY
if rank != 1:
    torch.save({"step": 3}, path)
# else
torch.save({"step": 3}, path)
# end
start = 0
if os.path.exists(path):
    start = torch.load(path)["step"]
weights = torch.ones(32)
for step in range(start, 6):
    dist.all_reduce(weights)  # HERE rank 1
dist.barrier()  # HERE rank 0 2
dist.destroy_process_group()
