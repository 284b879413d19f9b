"""/// truth
nproc = 3
codes = ["DD204", "DD111"]
root = [0]
blocked_on = "file-lock"
///"""
import fcntl
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
path = os.path.join(os.environ["JOB_DIR"], "cache.lock")
with open(path, "w") as cache:
    if dist.get_rank() == 1:
        time.sleep(0.5)
    if dist.get_rank() < 2:
        fcntl.flock(cache, fcntl.LOCK_EX)  # HERE rank 1
    dist.all_reduce(torch.ones(8))  # HERE rank 0 2
