"""/// truth
nproc = 3
codes = ["DD114"]
root = [1]
///"""
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
groups = [[0, 1], [0, 1, 2]]
for ranks in reversed(groups) if dist.get_rank() == 1 else groups:
    dist.new_group(ranks)  # HERE rank 0 1 2
dist.barrier()
