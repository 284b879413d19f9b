# /// truth
# nproc = 2
# code = "DD102"
# root = [1]
# root_confidence = "proved"
# decisive = "stamp"
# ///
"""Rank 1 sends one message less than rank 0 expects, and ends."""

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
for microbatch in range(4):
    if rank == 0:
        dist.recv(tensor, 1)  # HERE rank 0
    elif microbatch < 3:
        dist.send(tensor, 0)
stamp()
