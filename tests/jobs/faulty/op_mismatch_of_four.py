# /// truth
# nproc = 4
# code = "DD103"
# root = [2]
# root_confidence = "supported"
# hang = true
# decisive = "stamp"
# ///
"""One of four ranks gathers where the others reduce."""

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
parts = [torch.zeros(256) for _ in range(4)]
stamp()
if rank == 2:
    dist.all_gather(parts, tensor)  # HERE rank 2
else:
    dist.all_reduce(tensor)  # HERE rank 0 1 3
dist.destroy_process_group()
