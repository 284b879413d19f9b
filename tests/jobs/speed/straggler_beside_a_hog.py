# /// truth
# nproc = 2
# alone = true
#
# [faulty]
# seconds = 14
# code = "DD603"
# ranks = { root = [1] }
# root_confidence = "supported"
# says = "because other processes use its CPUs"
#
# [healthy]
# seconds = 12
# ///
"""Rank 1 shares its processor with two programs that compute all the time; rank 0 has one of its own.

Healthy: Every rank shares its processors with as many other programs as the other one.
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# if FAULTY
rank = int(os.environ["RANK"])
processors = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {processors[rank % len(processors)]})
# end
dist.init_process_group("gloo")
# if FAULTY
hogs = [subprocess.Popen([sys.executable, "-ISc", "while True: pass"]) for _ in range(2 * rank)]
# else
rank = dist.get_rank()
hogs = [subprocess.Popen([sys.executable, "-ISc", "while True: pass"]) for _ in range(os.cpu_count() // 2 or 1)]
# end
model = DistributedDataParallel(torch.nn.Linear(16, 4))
# if FAULTY
until = time.monotonic() + 10
going = torch.ones(1)
# else
begin = time.monotonic()
state = torch.zeros(1)
# end


def work(seconds):
    """Computes for so long as it has a processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


try:
    # if FAULTY
    while going.item():
    # else
    while state.item() < 9:
    # end
        loss = model(torch.randn(8, 16)).sum()
        # if FAULTY
        work(0.05)
        # else
        work(0.03)
        # end
        loss.backward()  # HERE rank 0
        # if FAULTY
        # All stop in the same step.
        going[0] = time.monotonic() < until
        dist.broadcast(going, 0)
        # else
        # All go by one clock.
        state[0] = time.monotonic() - begin
        dist.broadcast(state, 0)
        # end
finally:
    for hog in hogs:
        hog.kill()
        hog.wait()
dist.destroy_process_group()
