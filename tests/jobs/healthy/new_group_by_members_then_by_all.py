# /// truth
# nproc = 3
# healthy = true
# ///
"""Members alone make their group, and every rank is in one: so the name of the next one is the same for all."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
dist.new_group([0, 1] if rank < 2 else [2], use_local_synchronization=True)
everybody = dist.new_group([0, 1, 2])
dist.all_reduce(torch.ones(64), group=everybody)
dist.destroy_process_group()
