# /// truth
# nproc = 3
# code = "DD114"
# root = [0]
# root_confidence = "supported"
# hang = true
# decisive = "stamp"
# ///
"""One rank alone makes a group of all; the others have gone on to a barrier."""

import os
import time

import torch.distributed as dist


def stamp():
    """Tells the test when the decisive call was made."""
    path = os.environ.get("DDP_DOCTOR_TEST_STAMP")
    if path:
        with open(f"{path}.{rank}", "w") as file:
            file.write(str(time.time_ns()))


dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
stamp()
if rank == 0:
    dist.new_group([0, 1, 2])  # HERE rank 0
dist.barrier()  # HERE rank 1 2
dist.destroy_process_group()
