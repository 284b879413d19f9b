# /// truth
# nproc = 3
# code = "DD112"
# root = [0, 1]
# root_confidence = "proved"
# hang = true
# decisive = "stamp"
# ///
"""Rank 0 is in the all_reduce of all ranks, rank 1 first waits for the message that rank 0 sends after it."""

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
if rank == 1:
    dist.recv(tensor, 0)  # HERE rank 1
dist.all_reduce(tensor)  # HERE rank 0
if rank == 0:
    dist.send(tensor, 1)
dist.destroy_process_group()
