# /// truth
# nproc = 2
# healthy = true
# ///
"""Two ranks both send first, without waiting for it before they have received."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
peer = 1 - rank
mine, theirs = torch.ones(4), torch.zeros(4)
for step in range(4):
    work = dist.isend(mine, peer)
    dist.recv(theirs, peer)
    work.wait()
dist.destroy_process_group()
