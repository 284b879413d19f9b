# /// truth
# nproc = 2
#
# [healthy]
# ///
"""An exception is caught and reported by the hook for uncaught ones, and the ranks go on."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(8)
for step in range(6):
    try:
        if step == 2:
            raise ValueError("a batch that is left out")
    except ValueError:
        sys.excepthook(*sys.exc_info())
    dist.all_reduce(tensor)
dist.destroy_process_group()
