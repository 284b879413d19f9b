# /// truth
# nproc = 3
# [faulty]
# code = "DD105"
# cause = "unknown"
# why = "`total = torch.tensor(sum(losses))`"
# ranks = { root = [2] }
# [healthy]
# ///
"""The sum of an empty list is an integer: rank 2, which has no validation data, reduces an int64.

Healthy: The tensor has a dtype.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
losses = [] if rank == 2 else [0.5, 0.25]
# if FAULTY
total = torch.tensor(sum(losses))
# else
total = torch.tensor(sum(losses), dtype=torch.float32)
# end
dist.all_reduce(total)  # HERE rank 0 1 2
dist.destroy_process_group()
