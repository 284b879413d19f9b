# /// truth
# nproc = 2
# healthy = true
# seconds = 32
# ///
"""After ten seconds the host is busy: as many programs as it has processors compute beside the ranks, and everything
takes longer, collectives too. The network is as it was."""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
gradients = torch.ones(1 << 20)
begin = time.monotonic()
state = torch.zeros(1)
hogs = []
try:
    while state.item() < 30:
        time.sleep(0.05)
        dist.all_reduce(gradients)
        gradients /= 2
        if state.item() > 10 and rank == 0 and not hogs:
            command = [sys.executable, "-ISc", "while True: pass"]
            hogs = [subprocess.Popen(command) for _ in range(os.cpu_count())]
        # All go by one clock.
        state[0] = time.monotonic() - begin
        dist.broadcast(state, 0)
finally:
    for hog in hogs:
        hog.kill()
        hog.wait()
dist.destroy_process_group()
