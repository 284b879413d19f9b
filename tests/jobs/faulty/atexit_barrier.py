# /// truth
# nproc = 3
# code = "DD205"
# root = [1]
# root_confidence = "supported"
# hang = true
# decisive = "stamp"
# ///
"""Rank 1 is done early, and its atexit waits at a barrier while the others still train."""

import atexit
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


@atexit.register
def finish():
    stamp()
    dist.barrier()  # HERE rank 1


for step in range(4 if rank == 1 else 8):
    stamp()
    dist.all_reduce(tensor)  # HERE rank 0 2
    time.sleep(0.05)
