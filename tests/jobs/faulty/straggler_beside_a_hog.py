# /// truth
# nproc = 2
# code = "DD603"
# root = [1]
# root_confidence = "supported"
# says = "because others use its processors"
# seconds = 14
# ///
"""Rank 1 shares its processor with two programs that compute all the time; rank 0 has one of its own."""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
processors = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {processors[rank % len(processors)]})
dist.init_process_group("gloo")
hogs = [subprocess.Popen([sys.executable, "-ISc", "while True: pass"]) for _ in range(2 * rank)]
model = DistributedDataParallel(torch.nn.Linear(16, 4))
until = time.monotonic() + 10
going = torch.ones(1)


def work(seconds):
    """Computes for so long as it has a processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


try:
    while going.item():
        loss = model(torch.randn(8, 16)).sum()
        work(0.05)
        loss.backward()  # HERE rank 0
        # All stop in the same step.
        going[0] = time.monotonic() < until
        dist.broadcast(going, 0)
finally:
    for hog in hogs:
        hog.kill()
        hog.wait()
dist.destroy_process_group()
