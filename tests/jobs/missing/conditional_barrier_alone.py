# /// truth
#
# [faulty]
# nproc = 2
# run_options = ["--stall-after", "4"]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# cause = "rank-conditional"
# hang = true
# ranks = { root = [0], victims = [1] }
# [healthy]
# nproc = 4
# ///
"""Rank 0 returns late from a function that rank 1 left before the barrier; rank 1 makes no further call.

Healthy: Only the ranks of a subgroup enter its barrier.
"""

import time

import torch
import torch.distributed as dist


def report():
    # if FAULTY
    if rank != 0:
    # else
    if rank > 1:
    # end
        return
    # if FAULTY
    dist.barrier()  # HERE rank 0
    # else
    dist.barrier(group=group)
    # end


dist.init_process_group("gloo")
rank = dist.get_rank()
# if HEALTHY
group = dist.new_group([0, 1])
# end
dist.all_reduce(torch.ones(4))
report()
# if FAULTY
time.sleep(60)
# else
time.sleep(1)
dist.all_reduce(torch.ones(4))
# end
dist.destroy_process_group()
