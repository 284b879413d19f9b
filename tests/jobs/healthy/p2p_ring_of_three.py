# /// truth
# nproc = 3
# healthy = true
# ///
"""A ring in which every rank issues its send and its receive before it waits, and then one in which rank 0 sends first."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
left, right = (rank - 1) % world, (rank + 1) % world
mine, theirs = torch.ones(256), torch.zeros(256)
for step in range(4):
    works = [dist.irecv(theirs, left), dist.isend(mine, right)]
    for work in works:
        work.wait()
for step in range(4):
    if rank == 0:
        dist.send(mine, right)
        dist.recv(theirs, left)
    else:
        dist.recv(theirs, left)
        dist.send(mine, right)
dist.destroy_process_group()
