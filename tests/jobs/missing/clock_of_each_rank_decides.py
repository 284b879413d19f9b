# /// truth
# nproc = 2
# [faulty]
# code = "DD103"
# cause = "local-decision"
# why = "`elapsed >= 2.5`"
# hang = true
# ranks = { root = [0, 1] }
# [healthy]
# ///
"""Each rank saves a checkpoint once its own clock says that it is due. The clock of rank 0 starts later, since it has
more data to load.

Healthy: A checkpoint is due after a number of steps.
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    time.sleep(1.5)
started = time.monotonic()
for step in range(80):
    gradient = torch.ones(4)
    dist.all_reduce(gradient)  # HERE rank 0
    time.sleep(0.05)
    # if FAULTY
    elapsed = time.monotonic() - started
    if elapsed >= 2.5:
        # The first all_reduce has waited for rank 0.
        started = time.monotonic()
        dist.barrier()  # HERE rank 1
    # else
    if step % 20 == 19:
        dist.barrier()
    # end
dist.destroy_process_group()
