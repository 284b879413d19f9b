"""/// truth
nproc = 3
healthy = true
quick = true
///"""
import time

import torch
import torch.distributed as dist


def read_shard(step):
    time.sleep(0.9)


dist.init_process_group("gloo")
for step in range(100_000):
    if dist.get_rank() == 0:
        read_shard(step)
    dist.all_reduce(torch.ones(8))
