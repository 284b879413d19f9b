# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD105"
# cause = "rank-conditional"
# verdict = "wrong"
# root_confidence = "suspected"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Both ranks reduce as many bytes, but floats meet integers: no error, wrong numbers.

Healthy: Both ranks reduce floats.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
dist.all_reduce(tensor)
# if FAULTY
tensor = torch.ones(256, dtype=torch.float32 if rank == 0 else torch.int32)
# else
tensor = torch.ones(256, dtype=torch.float32)
# end
stamp()
dist.all_reduce(tensor)  # HERE rank 0 1
dist.barrier()
dist.destroy_process_group()
