# /// truth
# nproc = 4
# healthy = true
# ///
"""All four ranks gather, then reduce."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
parts = [torch.zeros(256) for _ in range(4)]
dist.all_gather(parts, tensor)
dist.all_reduce(tensor)
dist.destroy_process_group()
