# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD106"
# cause = "rank-conditional"
# verdict = "wrong"
# root_confidence = "suspected"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""One rank sums, the other takes the maximum: no error, wrong numbers.

Healthy: Both ranks take the maximum.
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
dist.all_reduce(tensor, op=dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX)  # HERE rank 0 1
# else
dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
# end
dist.barrier()
dist.destroy_process_group()
