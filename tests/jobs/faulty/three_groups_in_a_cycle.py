# /// truth
# nproc = 3
# code = "DD111"
# root = [0, 1, 2]
# root_confidence = "proved"
# hang = true
# decisive = "stamp"
# ///
"""Three ranks each wait in a group of two for the next one."""

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
groups = [dist.new_group([i, (i + 1) % 3]) for i in range(3)]
tensor = torch.ones(256)
for i in range(3):
    if rank in (i, (i + 1) % 3):
        dist.all_reduce(tensor, group=groups[i])
stamp()
dist.all_reduce(tensor, group=groups[rank])  # HERE rank 0 1 2
dist.all_reduce(tensor, group=groups[(rank + 2) % 3])
dist.destroy_process_group()
