# /// truth
# nproc = 3
# code = "DD205"
# root = [1]
# root_confidence = "supported"
# hang = true
# decisive = "stamp"
# ///
"""Rank 1 decides alone to stop by sys.exit, and its finally waits at a barrier."""

import os
import sys
import time

import torch
import torch.distributed as dist


def stamp():
    """Tells the test when the decisive call was made."""
    path = os.environ.get("DDP_DOCTOR_TEST_STAMP")
    if path:
        with open(f"{path}.{rank}", "w") as file:
            file.write(str(time.time_ns()))


dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
try:
    for step in range(8):
        if rank == 1 and step == 4:
            sys.exit(0)
        stamp()
        dist.all_reduce(tensor)  # HERE rank 0 2
finally:
    stamp()
    dist.barrier()  # HERE rank 1
    dist.destroy_process_group()
