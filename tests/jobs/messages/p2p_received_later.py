# /// truth
# nproc = 2
#
# [healthy]
# [healthy.nccl]
# code = "DD112"
# verdict = "hang"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# lines = { 0 = ["work = dist.isend(tensor, 1)"], 1 = ["dist.barrier()"] }
# ///
"""A message is received long after it was issued, and its sender waits for that only at the end."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(4096)
group = dist.new_group([0, 1])
if rank == 0:
    work = dist.isend(tensor, 1)
    other = dist.isend(tensor, 1, group=group)
    dist.barrier()
    work.wait()
    other.wait()
else:
    dist.barrier()
    time.sleep(1)
    dist.recv(tensor, 0, group=group)
    dist.recv(tensor, 0)
dist.destroy_process_group()
