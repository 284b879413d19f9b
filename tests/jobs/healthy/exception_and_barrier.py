# /// truth
# nproc = 2
# healthy = true
# ///
"""An exception that is dealt with before anybody communicates."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
try:
    for step in range(8):
        try:
            if rank == 1 and step == 4:
                raise ValueError("a broken sample")
        except ValueError:
            tensor.fill_(1)
        dist.all_reduce(tensor)
finally:
    dist.barrier()
    dist.destroy_process_group()
