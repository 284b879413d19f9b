# /// truth
# nproc = 2
# code = "DD112"
# root = [0, 1]
# root_confidence = "proved"
# hang = true
# decisive = "stamp"
# ///
"""Two ranks exchange tensors; from the third step on both receive before they send."""

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
peer = 1 - rank
mine, theirs = torch.ones(256), torch.zeros(256)
for step in range(4):
    if rank == 0 and step < 2:
        dist.send(mine, peer)
        dist.recv(theirs, peer)
    else:
        stamp()
        dist.recv(theirs, peer)  # HERE rank 0 1
        dist.send(mine, peer)
dist.destroy_process_group()
