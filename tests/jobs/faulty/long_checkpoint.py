# /// truth
# nproc = 2
# code = "DD206"
# root = [0]
# root_confidence = "supported"
# hang = false
# run_options = ["--stall-after", "3"]
# seconds = 20
# ///
"""Rank 0 saves for longer than the others' barrier may take: they give up, and the launcher ends all."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

try:
    from ddp_doctor import phase
except ImportError:
    from contextlib import nullcontext as phase

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
if rank == 0:
    with phase("checkpoint"):
        time.sleep(3600)
dist.barrier()  # HERE rank 1
dist.destroy_process_group()
