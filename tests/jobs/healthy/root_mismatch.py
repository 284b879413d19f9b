# /// truth
# nproc = 2
# healthy = true
# ///
"""Both ranks expect rank 0 to broadcast."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
dist.broadcast(tensor, src=0)
dist.barrier()
dist.destroy_process_group()
