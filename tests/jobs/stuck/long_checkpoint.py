# /// truth
# nproc = 2
# seconds = 20
#
# [faulty]
# run_options = ["--stall-after", "3"]
# code = "DD206"
# verdict = "slow"
# root_confidence = "supported"
# ranks = { root = [0], victims = [1] }
# [faulty.nccl]
# verdict = "hang"
# severity = "error"
# hang = true
# [healthy]
# ///
"""Rank 0 saves for longer than the others' barrier may take: they give up, and the launcher ends all.

Healthy: Rank 0 saves for twenty seconds, and says so, while the others wait at a barrier.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

try:
    from ddp_doctor import phase
except ImportError:
    from contextlib import nullcontext as phase

# if FAULTY
dist.init_process_group("gloo", timeout=timedelta(seconds=20))
# else
dist.init_process_group("gloo")
# end
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
if rank == 0:
    with phase("checkpoint"):
        # if FAULTY
        time.sleep(3600)
        # else
        time.sleep(20)
        # end
dist.barrier()  # HERE rank 1
dist.destroy_process_group()
