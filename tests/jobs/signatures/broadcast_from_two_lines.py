# /// truth
# nproc = 2
#
# [healthy]
# ///
"""One broadcast, called from different lines by its root and by the others."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.full((8,), float(rank))
for step in range(4):
    if rank == 0:
        dist.broadcast(tensor, src=0)
    else:
        dist.broadcast(tensor, src=0)
dist.destroy_process_group()
