# /// truth
# nproc = 2
# code = "DD113"
# root = [1]
# root_confidence = "suspected"
# hang = false
# run_options = ["--stall-after", "3"]
# decisive = "stamp"
# ///
"""Rank 1 sends one message less than rank 0 expects, and computes on without any call. Rank 0's wait times out."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def stamp():
    """Tells the test when the decisive call was made."""
    path = os.environ.get("DDP_DOCTOR_TEST_STAMP")
    if path:
        with open(f"{path}.{rank}", "w") as file:
            file.write(str(time.time_ns()))


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
rank = dist.get_rank()
tensor = torch.ones(256)
for microbatch in range(4):
    if rank == 0:
        stamp()
        dist.recv(tensor, 1)  # HERE rank 0
    elif microbatch < 3:
        dist.send(tensor, 0)
stamp()
if rank == 1:
    weights = torch.randn(256, 256)
    while True:
        weights = torch.tanh(weights @ weights)
dist.destroy_process_group()
