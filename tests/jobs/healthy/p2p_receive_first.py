# /// truth
# nproc = 2
# healthy = true
# ///
"""Two ranks exchange tensors: rank 0 sends first, rank 1 receives first."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
peer = 1 - rank
mine, theirs = torch.ones(256), torch.zeros(256)
for step in range(4):
    if rank == 0:
        dist.send(mine, peer)
        dist.recv(theirs, peer)
    else:
        dist.recv(theirs, peer)
        dist.send(mine, peer)
dist.destroy_process_group()
