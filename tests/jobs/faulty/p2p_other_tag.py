# /// truth
# nproc = 2
# code = "DD113"
# root = [0, 1]
# root_confidence = "suspected"
# hang = true
# decisive = "stamp"
# ///
"""Two pipeline stages number their messages by microbatch, one from 0 and the other from 1."""

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
dist.barrier()
for microbatch in range(4):
    stamp()
    if rank == 0:
        dist.send(tensor, 1, tag=microbatch)  # HERE rank 0
    else:
        dist.recv(tensor, 0, tag=microbatch + 1)  # HERE rank 1
dist.destroy_process_group()
