# /// truth
# nproc = 4
# decisive = "stamp"
#
# [faulty]
# code = "DD103"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [2], victims = [0, 1, 3] }
# [healthy]
# ///
"""One of four ranks gathers where the others reduce.

Healthy: All four ranks gather, then reduce.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
parts = [torch.zeros(256) for _ in range(4)]
# if FAULTY
stamp()
if rank == 2:
    dist.all_gather(parts, tensor)  # HERE rank 2
else:
    dist.all_reduce(tensor)  # HERE rank 0 1 3
# else
dist.all_gather(parts, tensor)
dist.all_reduce(tensor)
# end
dist.destroy_process_group()
