# /// truth
# nproc = 2
# healthy = true
# seconds = 12
# ///
"""Rank 0 saves for seconds, without a word, while the others wait at a barrier."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
if rank == 0:
    shard = torch.ones(1 << 26)
    end = time.monotonic() + 12
    while time.monotonic() < end:
        torch.save(shard, "/dev/null")
dist.barrier()
dist.destroy_process_group()
