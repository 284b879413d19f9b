# /// truth
# nproc = 2
# healthy = true
# ///
"""Two ranks use two groups in the same order."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
first = dist.new_group([0, 1])
second = dist.new_group([0, 1])
tensor = torch.ones(256)
dist.all_reduce(tensor, group=first)
dist.all_reduce(tensor, group=second)
for group in (first, second):
    dist.all_reduce(tensor, group=group)
dist.destroy_process_group()
