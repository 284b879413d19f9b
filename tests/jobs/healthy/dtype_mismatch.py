# /// truth
# nproc = 2
# healthy = true
# ///
"""Both ranks reduce floats."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
tensor = torch.ones(256, dtype=torch.float32)
dist.all_reduce(tensor)
dist.barrier()
dist.destroy_process_group()
