# /// truth
# nproc = 2
# healthy = true
# ///
"""Both ranks take the maximum."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
dist.barrier()
dist.destroy_process_group()
