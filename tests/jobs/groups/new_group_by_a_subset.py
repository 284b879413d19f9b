# /// truth
# nproc = 3
# decisive = "stamp"
#
# [faulty]
# code = "DD114"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [2], victims = [0, 1] }
# [healthy]
# ///
"""Two ranks make a group of their own; then all ranks make one, and find each other no more.

Healthy: All ranks make all groups, also those that they are no members of.
"""

import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
# if HEALTHY
pair = dist.new_group([0, 1])
# end
if rank < 2:
    # if FAULTY
    pair = dist.new_group([0, 1])  # HERE rank 0 1
    # end
    dist.barrier(group=pair)
stamp()
everybody = dist.new_group([0, 1, 2])  # HERE rank 2
dist.barrier(group=everybody)
dist.destroy_process_group()
