# /// truth
# nproc = 2
# decisive = "stamp"
# quick = []
# [faulty]
# code = "DD111"
# cause = "swapped-calls"
# verdict = "hang"
# root_confidence = "proved"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [faulty.nccl]
# root_confidence = "supported"
# [healthy]
# ///
"""Two ranks use two groups in opposite order, and wait each time.

Healthy: Two ranks use two groups in the same order.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
first = dist.new_group([0, 1])
second = dist.new_group([0, 1])
tensor = torch.ones(256)
dist.all_reduce(tensor, group=first)
dist.all_reduce(tensor, group=second)
# if FAULTY
groups = (first, second) if rank == 0 else (second, first)
stamp()
for group in groups:
# else
for group in (first, second):
# end
    dist.all_reduce(tensor, group=group)  # HERE rank 0 1
dist.destroy_process_group()
