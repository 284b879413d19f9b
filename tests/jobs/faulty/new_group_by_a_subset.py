# /// truth
# nproc = 3
# code = "DD114"
# root = [2]
# root_confidence = "supported"
# hang = true
# decisive = "stamp"
# ///
"""Two ranks make a group of their own; then all ranks make one, and find each other no more."""

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
if rank < 2:
    pair = dist.new_group([0, 1])  # HERE rank 0 1
    dist.barrier(group=pair)
stamp()
everybody = dist.new_group([0, 1, 2])  # HERE rank 2
dist.barrier(group=everybody)
dist.destroy_process_group()
