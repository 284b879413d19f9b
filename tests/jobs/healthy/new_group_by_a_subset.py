# /// truth
# nproc = 3
# healthy = true
# ///
"""All ranks make all groups, also those that they are no members of."""

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
pair = dist.new_group([0, 1])
if rank < 2:
    dist.barrier(group=pair)
everybody = dist.new_group([0, 1, 2])
dist.barrier(group=everybody)
dist.destroy_process_group()
