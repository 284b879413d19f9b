# /// truth
# nproc = 2
# code = "DD113"
# root = [0, 1]
# root_confidence = "suspected"
# decisive = "stamp"
# ///
"""The receiver expects the last batch to be as small as its own, the sender's is larger: Gloo aborts the receiver."""

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
for batch in (32, 32, 8):
    stamp()
    if rank == 0:
        dist.send(torch.ones(32, 16), 1)  # HERE rank 0
    else:
        dist.recv(torch.zeros(batch, 16), 0)  # HERE rank 1
dist.destroy_process_group()
