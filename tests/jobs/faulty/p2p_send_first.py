# /// truth
# nproc = 2
# code = "DD112"
# root = [0, 1]
# root_confidence = "supported"
# hang = true
# decisive = "stamp"
# ///
"""Two ranks both send first. On Gloo a send waits for its receive, however small it is."""

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
mine, theirs = torch.ones(4), torch.zeros(4)
stamp()
dist.send(mine, peer)  # HERE rank 0 1
dist.recv(theirs, peer)
dist.destroy_process_group()
