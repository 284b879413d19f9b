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
# [healthy]
# ///
"""One rank leaves a rank out of a group; making it goes well, and using it does not.

Healthy: Every rank makes a group of its own, in which nobody waits for anybody; then all make one.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
# if FAULTY
ranks = [0, 1] if rank == 1 else [0, 1, 2]
group = dist.new_group(ranks)  # HERE rank 0 1 2
if rank != 1:
    dist.all_reduce(torch.ones(64), group=group)
dist.barrier()
# else
alone = dist.new_group([rank])
dist.all_reduce(torch.ones(64), group=alone)
group = dist.new_group([2, 0, 1] if rank == 1 else [0, 1, 2])
dist.all_reduce(torch.ones(64), group=group)
# end
dist.destroy_process_group()
