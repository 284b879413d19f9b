# /// truth
# nproc = 2
# quick = ["healthy"]
# [healthy]
# ///
"""Nobody destroys the process group, and nobody waits for anybody."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
dist.barrier()
