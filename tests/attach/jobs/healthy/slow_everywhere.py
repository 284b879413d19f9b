"""/// truth
nproc = 3
healthy = true
///"""
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(100_000):
    time.sleep(0.2)
    dist.all_reduce(torch.ones(8))
    time.sleep(0.1)
    if step % 5 == 0:
        dist.barrier()
