# /// truth
# nproc = 2
# healthy = true
# ///
"""Both ranks reduce tensors of one size."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
tensor = torch.ones(300)
dist.all_reduce(tensor)
dist.destroy_process_group()
