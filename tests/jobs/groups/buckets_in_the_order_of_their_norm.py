# /// truth
# nproc = 2
# [faulty]
# code = "DD111"
# cause = "swapped-calls"
# why = "in a loop over `sorted(buckets, key=norm)`"
# hang = true
# ranks = { root = [0, 1] }
# [healthy]
# ///
"""Each rank reduces the bucket with the smallest norm first, each bucket in a group of its own. The norms are those of
the rank, so that the ranks take the groups in different orders.

Healthy: The buckets are reduced in the order of the list.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
buckets = list(zip(groups, [torch.full((4,), 1.0 + rank), torch.full((4,), 2.0 - rank)]))


def norm(bucket):
    return bucket[1].norm().item()


for group in groups:
    dist.all_reduce(torch.ones(4), group=group)
# if FAULTY
for group, gradient in sorted(buckets, key=norm):
    dist.all_reduce(gradient, group=group)  # HERE rank 0 1
# else
for group, gradient in buckets:
    dist.all_reduce(gradient, group=group)
# end
dist.destroy_process_group()
