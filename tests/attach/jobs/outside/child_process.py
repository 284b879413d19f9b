"""/// truth
nproc = 3
codes = ["DD204"]
root = [1]
blocked_on = "child"
says = "sleep 3600"
///"""
import subprocess

import torch
import torch.distributed as dist


def upload(step):
    subprocess.run(["sleep", "3600"], check=True)  # HERE rank 1


dist.init_process_group("gloo")
for step in range(100):
    if step == 3 and dist.get_rank() == 1:
        upload(step)
    dist.all_reduce(torch.ones(8))  # HERE rank 0 2
