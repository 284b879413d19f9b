# /// truth
# nproc = 3
# healthy = true
# ///
"""All ranks have the same PyTorch, which calls itself otherwise than usual."""

import time

import torch
import torch.distributed as dist

torch.__version__ = "2.14.1"
dist.init_process_group("gloo")
for _ in range(10):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.1)
dist.destroy_process_group()
