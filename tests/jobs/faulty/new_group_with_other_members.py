# /// truth
# nproc = 3
# code = "DD114"
# root = [1]
# root_confidence = "supported"
# hang = true
# ///
"""One rank leaves a rank out of a group; making it goes well, and using it does not."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
ranks = [0, 1] if rank == 1 else [0, 1, 2]
group = dist.new_group(ranks)  # HERE rank 0 1 2
if rank != 1:
    dist.all_reduce(torch.ones(64), group=group)
dist.barrier()
dist.destroy_process_group()
