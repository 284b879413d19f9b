# /// truth
# nproc = 2
# code = "DD501"
# root = [1]
# root_confidence = "proved"
# says = "asking for 256 PiB"
# ///
"""An allocation of rank 1 fails in the middle of the training, and nobody catches it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    if rank == 1 and step == 4:
        tensor = torch.empty(1 << 58, dtype=torch.uint8)  # HERE rank 1
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
