# /// truth
# nproc = 2
# code = "DD106"
# root = [0, 1]
# root_confidence = "suspected"
# hang = false
# decisive = "stamp"
# ///
"""One rank sums, the other takes the maximum: no error, wrong numbers."""

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
dist.all_reduce(tensor)
stamp()
dist.all_reduce(tensor, op=dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX)  # HERE rank 0 1
dist.barrier()
dist.destroy_process_group()
