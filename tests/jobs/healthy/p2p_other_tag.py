# /// truth
# nproc = 2
# healthy = true
# ///
"""Two pipeline stages number their messages by microbatch; the receiver takes them in another order than they were sent."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    works = [dist.isend(torch.full((256,), float(tag)), 1, tag=tag) for tag in range(4)]
    for work in works:
        work.wait()
else:
    for tag in (2, 0, 3, 1):
        tensor = torch.zeros(256)
        dist.recv(tensor, 0, tag=tag)
        assert tensor[0] == tag
dist.destroy_process_group()
