# /// truth
# nproc = 3
#
# [faulty]
# code = "DD114"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [2], victims = [0, 1] }
# [faulty.nccl]
# harmless = true
# [healthy]
# ///
"""Members alone make their group, as they may; the name of the next one has shifted for them.

Healthy: Members alone make their group, and every rank is in one: so the name of the next one is the same for all.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
# if FAULTY
dist.new_group([0, 1], use_local_synchronization=True)
dist.new_group([0, 1, 2])  # HERE rank 0 1 2
# else
dist.new_group([0, 1] if rank < 2 else [2], use_local_synchronization=True)
everybody = dist.new_group([0, 1, 2])
dist.all_reduce(torch.ones(64), group=everybody)
# end
dist.destroy_process_group()
