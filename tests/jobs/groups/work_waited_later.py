# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Several asynchronous calls are waited for at the end, in another order."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensors = [torch.ones(1024) for _ in range(4)]
for step in range(4):
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    time.sleep(0.02 * rank)
    for work in reversed(works) if rank else works:
        work.wait()
dist.destroy_process_group()
