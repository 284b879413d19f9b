# /// truth
# nproc = 2
# healthy = true
# ///
"""The world is destroyed and initialised again."""

import torch
import torch.distributed as dist

for generation in range(2):
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()
