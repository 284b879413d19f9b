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
"""One rank makes the same two groups the other way round.

Healthy: All ranks make the same groups in the same order, and come at different times.
"""

import time

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
# if FAULTY
groups = [[0, 1], [0, 1, 2]]
for ranks in reversed(groups) if rank == 1 else groups:
# else
for ranks in [0, 1], [0, 1, 2], [1, 2]:
    time.sleep(0.3 * rank)
# end
    dist.new_group(ranks)  # HERE rank 0 1 2
# if HEALTHY
dist.barrier()
# end
dist.destroy_process_group()
