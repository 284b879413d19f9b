# /// truth
# nproc = 3
# code = "DD112"
# root = [0, 1, 2]
# root_confidence = "proved"
# hang = true
# decisive = "stamp"
# ///
"""A ring in which every rank waits for its left neighbour before it sends to its right one."""

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
rank, world = dist.get_rank(), dist.get_world_size()
left, right = (rank - 1) % world, (rank + 1) % world
mine, theirs = torch.ones(256), torch.zeros(256)
stamp()
dist.recv(theirs, left)  # HERE rank 0 1 2
dist.send(mine, right)
dist.destroy_process_group()
