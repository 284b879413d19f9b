# /// truth
# nproc = 4
# healthy = true
# ///
"""Only the ranks of a subgroup enter its barrier."""

import time

import torch
import torch.distributed as dist

def report():
    if rank > 1:
        return
    dist.barrier(group=group)


dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([0, 1])
dist.all_reduce(torch.ones(4))
report()
time.sleep(1)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
