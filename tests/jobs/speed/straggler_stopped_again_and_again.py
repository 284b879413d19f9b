# /// truth
# nproc = 2
# alone = true
# seconds = 14
#
# [faulty]
# code = "DD603"
# verdict = "slow"
# root_confidence = "supported"
# says = "because it is stopped and continued"
# ranks = { root = [1], victims = [0] }
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
# Begins when rank 1 says so, and ends when it closes the pipe, or has ended.
os.read(0, 1)
while not select.select([0], [], [], 0.1)[0]:
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(int(sys.argv[1]), signal.SIGCONT)
"""

stopper = None
if os.environ["RANK"] == "1":
    command = [sys.executable, "-ISc", STOP_AND_GO, str(os.getpid())]
    stopper = subprocess.Popen(command, stdin=subprocess.PIPE)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(16, 4))
begin = time.monotonic()
going = torch.ones(1)
for step in range(1_000_000):
    if stopper is not None and step == 3:
        stopper.stdin.write(b"!")
        stopper.stdin.flush()
    loss = model(torch.randn(8, 16)).sum()
    time.sleep(0.03)
    loss.backward()
    # All stop in the same step.
    going[0] = time.monotonic() < begin + 10
    dist.broadcast(going, 0)
    if not going.item():
        break
if stopper is not None:
    stopper.stdin.close()
    stopper.wait()
dist.destroy_process_group()
