# /// truth
# nproc = 3
#
# [healthy]
# [healthy.nccl]
# code = "DD111"
# verdict = "hang"
# hang = true
# ranks = { root = [1, 2], victims = [0] }
# lines = { 1 = ["dist.gather(tensor, dst=0)"], 2 = ["dist.barrier(group=group)"] }
# ///
"""A gather of the world crosses a subgroup's barrier; its root needs everybody, the others only the root."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([1, 2])
tensor = torch.ones(8)
parts = [torch.zeros(8) for _ in range(3)]
for step in range(4):
    if rank == 0:
        dist.gather(tensor, parts, dst=0)
    elif rank == 1:
        dist.gather(tensor, dst=0)
        dist.barrier(group=group)
    else:
        dist.barrier(group=group)
        dist.gather(tensor, dst=0)
dist.destroy_process_group()
