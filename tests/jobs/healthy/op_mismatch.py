# /// truth
# nproc = 2
# healthy = true
# ///
"""Both ranks reduce to all, from different lines."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
if rank == 0:
    dist.all_reduce(tensor)
else:
    dist.all_reduce(tensor)
dist.destroy_process_group()
