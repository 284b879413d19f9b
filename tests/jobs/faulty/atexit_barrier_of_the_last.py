# /// truth
# nproc = 3
# code = "DD205"
# root = [1]
# root_confidence = "supported"
# hang = false
# decisive = "stamp"
# ///
"""Rank 1 alone has an atexit that waits at a barrier; the others have long ended."""

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
for step in range(8):
    dist.all_reduce(tensor)
    time.sleep(0.05)
if rank == 1:
    time.sleep(3)

    @atexit.register
    def finish():
        stamp()
        dist.barrier()  # HERE rank 1
