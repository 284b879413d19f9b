# /// truth
# nproc = 3
#
# [faulty]
# code = "DD114"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [faulty.nccl]
# verdict = "healthy"
# severity = "warning"
# hang = false
# [healthy]
# ///
"""One rank makes another group than the others on the same line, is no member of it and goes on.

Healthy: Every rank makes the group of all.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
# if HEALTHY
group = dist.new_group([0, 1, 2])
# else
group = dist.new_group([0, 2] if rank == 1 else [0, 1, 2])  # HERE rank 0 1 2
# end
everybody = dist.new_group([0, 1, 2])
dist.all_reduce(torch.ones(1), group=everybody)
dist.destroy_process_group()
