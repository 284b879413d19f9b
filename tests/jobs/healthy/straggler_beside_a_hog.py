# /// truth
# nproc = 2
# healthy = true
# seconds = 12
# ///
"""Every rank shares its processors with as many other programs as the other one."""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
hogs = [subprocess.Popen([sys.executable, "-ISc", "while True: pass"]) for _ in range(os.cpu_count() // 2 or 1)]
model = DistributedDataParallel(torch.nn.Linear(16, 4))
begin = time.monotonic()
state = torch.zeros(1)


def work(seconds):
    """Computes for so long as it has a processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


try:
    while state.item() < 9:
        loss = model(torch.randn(8, 16)).sum()
        work(0.03)
        loss.backward()
        # All go by one clock.
        state[0] = time.monotonic() - begin
        dist.broadcast(state, 0)
finally:
    for hog in hogs:
        hog.kill()
        hog.wait()
dist.destroy_process_group()
