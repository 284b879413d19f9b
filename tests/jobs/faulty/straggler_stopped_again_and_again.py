# /// truth
# nproc = 2
# code = "DD603"
# root = [1]
# root_confidence = "supported"
# says = "because it is stopped and continued"
# seconds = 14
# ///
"""Somebody stops rank 1 and lets it go on, again and again, as a batch system does that shares nodes by time."""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STOP_AND_GO = """
import os, select, signal, sys, time
# Until rank 1 closes the pipe, or has ended.
while not select.select([sys.stdin], [], [], 0.2)[0]:
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    time.sleep(0.4)
    os.kill(int(sys.argv[1]), signal.SIGCONT)
"""

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(16, 4))
begin = time.monotonic()
stopper = None
going = torch.ones(1)
while going.item():
    if rank == 1 and stopper is None and time.monotonic() > begin + 1:
        command = [sys.executable, "-ISc", STOP_AND_GO, str(os.getpid())]
        stopper = subprocess.Popen(command, stdin=subprocess.PIPE)
    loss = model(torch.randn(8, 16)).sum()
    time.sleep(0.03)
    loss.backward()
    # All stop in the same step.
    going[0] = time.monotonic() < begin + 12
    dist.broadcast(going, 0)
if stopper is not None:
    stopper.stdin.close()
    stopper.wait()
dist.destroy_process_group()
