# /// truth
# nproc = 3
# code = "DD114"
# root = [2]
# root_confidence = "supported"
# hang = true
# ///
"""Members alone make their group, as they may; the name of the next one has shifted for them."""

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
dist.new_group([0, 1], use_local_synchronization=True)
dist.new_group([0, 1, 2])  # HERE rank 0 1 2
dist.destroy_process_group()
