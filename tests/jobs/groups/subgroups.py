# /// truth
# nproc = 4
# quick = ["healthy"]
# [healthy]
# ///
"""Two subgroups work on their own, at different speeds and with different calls."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine = halves[rank // 2]
tensor = torch.ones(64)
for step in range(4):
    dist.all_reduce(tensor, group=mine)
    if rank >= 2:
        dist.broadcast(tensor, src=2, group=mine)
        time.sleep(0.05)
    if step % 2:
        dist.barrier()
dist.destroy_process_group()
