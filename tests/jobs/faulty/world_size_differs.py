# /// truth
# nproc = 3
# code = "DD303"
# root = [2]
# root_confidence = "supported"
# says = "size of the world"
# hang = true
# decisive = "stamp"
# ///
"""One rank believes that the world is larger than the launcher has made it."""

import os
import time

import torch.distributed as dist


def stamp():
    """Tells the test when the decisive call was made."""
    path = os.environ.get("DDP_DOCTOR_TEST_STAMP")
    if path:
        with open(f"{path}.{rank}", "w") as file:
            file.write(str(time.time_ns()))


rank = int(os.environ["RANK"])
stamp()
if rank == 2:
    dist.init_process_group("gloo", rank=rank, world_size=4)  # HERE rank 2
dist.init_process_group("gloo")  # HERE rank 0 1
dist.barrier()
dist.destroy_process_group()
