# /// truth
# nproc = 3
# code = "DD303"
# root = [1]
# root_confidence = "supported"
# says = "port of the master"
# hang = true
# decisive = "stamp"
# ///
"""The environment of one rank says another port, as a profile that sets MASTER_PORT does."""

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
if rank == 1:
    os.environ["MASTER_PORT"] = str(10000 + int(os.environ["MASTER_PORT"]) % 20000)
stamp()
dist.init_process_group("gloo")  # HERE rank 0 1 2
dist.barrier()
dist.destroy_process_group()
