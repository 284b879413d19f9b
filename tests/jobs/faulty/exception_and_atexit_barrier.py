# /// truth
# nproc = 2
# code = "DD202"
# root = [1]
# root_confidence = "proved"
# hang = true
# decisive = "stamp"
# ///
"""An exception ends rank 1, whose atexit waits at a barrier: its process never ends."""

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
    dist.barrier()


for step in range(8):
    if rank == 1 and step == 4:
        raise ValueError("a broken sample")  # HERE rank 1
    stamp()
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
