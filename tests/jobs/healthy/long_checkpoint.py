# /// truth
# nproc = 2
# healthy = true
# seconds = 20
# ///
"""Rank 0 saves for twenty seconds, and says so, while the others wait at a barrier."""

import time

import torch
import torch.distributed as dist

try:
    from ddp_doctor import phase
except ImportError:
    from contextlib import nullcontext as phase

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
if rank == 0:
    with phase("checkpoint"):
        time.sleep(20)
dist.barrier()
dist.destroy_process_group()
