# /// truth
# nproc = 3
# healthy = true
# ///
"""All ranks make their all_reduce before rank 0 sends to rank 1."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(4):
    dist.all_reduce(tensor)
    if rank == 1:
        dist.recv(tensor, 0)
    if rank == 0:
        dist.send(tensor, 1)
dist.destroy_process_group()
