# /// truth
# nproc = 3
# decisive = "stamp"
#
# [faulty]
# code = "DD111"
# verdict = "hang"
# root_confidence = "proved"
# hang = true
# ranks = { root = [0, 1, 2], victims = [] }
# [faulty.nccl]
# root_confidence = "supported"
# [healthy]
# ///
"""Three ranks each wait in a group of two for the next one.

Healthy: Three groups of two, used by all their ranks in one order.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([i, (i + 1) % 3]) for i in range(3)]
tensor = torch.ones(256)
# if FAULTY
for i in range(3):
    if rank in (i, (i + 1) % 3):
        dist.all_reduce(tensor, group=groups[i])
stamp()
dist.all_reduce(tensor, group=groups[rank])  # HERE rank 0 1 2
dist.all_reduce(tensor, group=groups[(rank + 2) % 3])
# else
for step in range(4):
    for i in range(3):
        if rank in (i, (i + 1) % 3):
            dist.all_reduce(tensor, group=groups[i])
# end
dist.destroy_process_group()
