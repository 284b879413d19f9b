# /// truth
# nproc = 2
#
# [faulty]
# seconds = 40
# run_options = ["--stall-after", "8"]
# code = "DD206"
# verdict = "slow"
# root_confidence = "supported"
# says = "checkpoint"
# ranks = { root = [0], victims = [1] }
# [faulty.nccl]
# verdict = "hang"
# severity = "error"
# hang = true
# [healthy]
# seconds = 12
# ///
"""Rank 0 saves for longer than the others' barrier may take, and does not say so: its stacks do.

Healthy: Rank 0 saves for seconds, without a word, while the others wait at a barrier.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

# if FAULTY
dist.init_process_group("gloo", timeout=timedelta(seconds=40))
# else
dist.init_process_group("gloo")
# end
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
if rank == 0:
    shard = torch.ones(1 << 26)
    # if FAULTY
    while True:
    # else
    end = time.monotonic() + 12
    while time.monotonic() < end:
    # end
        torch.save(shard, "/dev/null")  # HERE rank 0
dist.barrier()  # HERE rank 1
dist.destroy_process_group()
