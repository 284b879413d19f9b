# /// truth
# nproc = 3
# healthy = true
# ///
"""Three groups of two, used by all their ranks in one order."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([i, (i + 1) % 3]) for i in range(3)]
tensor = torch.ones(256)
for step in range(4):
    for i in range(3):
        if rank in (i, (i + 1) % 3):
            dist.all_reduce(tensor, group=groups[i])
dist.destroy_process_group()
