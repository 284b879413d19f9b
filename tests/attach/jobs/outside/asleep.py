"""/// truth
nproc = 3
codes = ["DD204"]
root = [1]
step = 3
quick = true
///"""
import time

import torch
import torch.distributed as dist


def wait_for_operator():
    time.sleep(3600)  # HERE rank 1


dist.init_process_group("gloo")
for step in range(100):
    loss = torch.ones(8)
    if step == 3 and dist.get_rank() == 1:
        wait_for_operator()
    dist.all_reduce(loss)  # HERE rank 0 2
