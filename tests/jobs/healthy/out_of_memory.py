# /// truth
# nproc = 2
# healthy = true
# ///
"""Every rank finds out how much it may allocate by trying, before the training and in the middle of it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(256)
for step in range(8):
    size = 1 << 58
    while True:
        try:
            torch.empty(size, dtype=torch.uint8)
            break
        except RuntimeError:
            size >>= 8
    dist.all_reduce(tensor)
dist.destroy_process_group()
