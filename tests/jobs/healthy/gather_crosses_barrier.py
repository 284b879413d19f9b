# /// truth
# nproc = 2
# healthy = true
# ///
"""A gather of the world crosses a subgroup's barrier: only its root must wait, so nobody is stuck."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([0, 1])
tensor = torch.ones(8)
parts = [torch.zeros(8) for _ in range(2)]
for step in range(4):
    if rank == 0:
        dist.barrier(group=group)
        dist.gather(tensor, parts, dst=0)
    else:
        dist.gather(tensor, dst=0)
        dist.barrier(group=group)
dist.destroy_process_group()
