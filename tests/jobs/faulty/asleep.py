# /// truth
# nproc = 2
# code = "DD204"
# root = [1]
# root_confidence = "supported"
# hang = true
# run_options = ["--stall-after", "8"]
# decisive = "stamp"
# ///
"""Rank 1 sleeps outside any collective while rank 0 waits."""

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
for step in range(8):
    if rank == 1 and step == 4:
        stamp()
        time.sleep(3600)  # HERE rank 1
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
dist.destroy_process_group()
