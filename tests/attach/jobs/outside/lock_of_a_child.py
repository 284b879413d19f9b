"""/// truth
nproc = 3
codes = ["DD204"]
root = [0]
blocked_on = "file-lock"
says = "exit of process"
///"""
import fcntl
import os
import subprocess
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
path = os.path.join(os.environ["JOB_DIR"], "cache.lock")
with open(path, "w") as cache:
    if dist.get_rank() == 0:
        fcntl.flock(cache, fcntl.LOCK_EX)
    if dist.get_rank() == 1:
        time.sleep(0.5)
        subprocess.run(["flock", path, "touch", path + ".ready"], check=True)  # HERE rank 1
    dist.all_reduce(torch.ones(8))  # HERE rank 0 2
