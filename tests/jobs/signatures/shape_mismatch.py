# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD104"
# cause = "rank-conditional"
# verdict = "crash"
# root_confidence = "suspected"
# ranks = { root = [0, 1], victims = [] }
# [faulty.nccl]
# verdict = "hang"
# hang = true
# [healthy]
# ///
"""Both ranks reduce, but tensors of different sizes.

Healthy: Both ranks reduce tensors of one size.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
# if FAULTY
tensor = torch.ones(256 if rank == 0 else 300)
# else
tensor = torch.ones(300)
# end
stamp()
dist.all_reduce(tensor)  # HERE rank 0 1
dist.destroy_process_group()
