# /// truth
# nproc = 2
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD201"
# verdict = "crash"
# root_confidence = "proved"
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Native code on rank 1 aborts the process in the middle of the training.

Healthy: A program that rank 1 starts aborts, and rank 1 goes on without its result.
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    if rank == 1 and step == 4:
        # if FAULTY
        stamp()
        os.abort()
        # else
        assert subprocess.run([sys.executable, "-c", "import os; os.abort()"]).returncode == -6
        # end
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
dist.destroy_process_group()
