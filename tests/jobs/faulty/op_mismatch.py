# /// truth
# nproc = 2
# code = "DD103"
# root = [0, 1]
# root_confidence = "suspected"
# hang = true
# decisive = "stamp"
# ///
"""Rank 0 reduces to rank 0, rank 1 reduces to all."""

import os
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
dist.all_reduce(tensor)
stamp()
if rank == 0:
    dist.reduce(tensor, 0)  # HERE rank 0
else:
    dist.all_reduce(tensor)  # HERE rank 1
dist.destroy_process_group()
