# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD107"
# verdict = "hang"
# root_confidence = "suspected"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [faulty.nccl]
# headline = "takes its root from the rank (`1 - rank`): 1 on rank 0, 0 on rank 1"
# [healthy]
# ///
"""Each rank expects the other one to broadcast.

Healthy: Both ranks expect rank 0 to broadcast.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
# if FAULTY
stamp()
dist.broadcast(tensor, src=1 - rank)  # HERE rank 0 1
# else
dist.broadcast(tensor, src=0)
# end
dist.barrier()
dist.destroy_process_group()
