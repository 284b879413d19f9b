# /// truth
# nproc = 3
# code = "DD114"
# root = [1]
# root_confidence = "supported"
# hang = true
# ///
"""One rank makes the same two groups the other way round."""

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
groups = [[0, 1], [0, 1, 2]]
for ranks in reversed(groups) if rank == 1 else groups:
    dist.new_group(ranks)  # HERE rank 0 1 2
dist.destroy_process_group()
