# /// truth
# nproc = 2
# healthy = true
# ///
"""Messages of different sizes, each as large as its receive; and one that is smaller than its receive."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for sent, room in ((32, 32), (8, 8), (8, 32)):
    if rank == 0:
        dist.send(torch.ones(sent, 16), 1)
    else:
        dist.recv(torch.zeros(room, 16), 0)
dist.destroy_process_group()
