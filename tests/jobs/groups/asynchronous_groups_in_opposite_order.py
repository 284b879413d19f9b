# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Two groups in opposite order, but nobody waits before both calls are made."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
first = dist.new_group([0, 1])
second = dist.new_group([0, 1])
tensor = torch.ones(256)
dist.all_reduce(tensor, group=first)
dist.all_reduce(tensor, group=second)
for step in range(4):
    groups = (first, second) if rank == 0 else (second, first)
    works = [dist.all_reduce(tensor.clone(), group=group, async_op=True) for group in groups]
    for work in works:
        work.wait()
dist.destroy_process_group()
