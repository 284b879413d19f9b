# /// truth
# nproc = 2
# code = "DD111"
# root = [0, 1]
# root_confidence = "proved"
# hang = true
# decisive = "stamp"
# ///
"""Two ranks use two groups in opposite order, and wait each time."""

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
first = dist.new_group([0, 1])
second = dist.new_group([0, 1])
tensor = torch.ones(256)
dist.all_reduce(tensor, group=first)
dist.all_reduce(tensor, group=second)
groups = (first, second) if rank == 0 else (second, first)
stamp()
for group in groups:
    dist.all_reduce(tensor, group=group)  # HERE rank 0 1
dist.destroy_process_group()
