# /// truth
# nproc = 2
# code = "DD206"
# root = [0]
# root_confidence = "supported"
# says = "checkpoint"
# hang = false
# run_options = ["--stall-after", "8"]
# seconds = 40
# ///
"""Rank 0 saves for longer than the others' barrier may take, and does not say so: its stacks do."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=40))
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
if rank == 0:
    shard = torch.ones(1 << 26)
    while True:
        torch.save(shard, "/dev/null")  # HERE rank 0
dist.barrier()  # HERE rank 1
dist.destroy_process_group()
