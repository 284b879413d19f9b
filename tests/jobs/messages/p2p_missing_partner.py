# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# run_options = ["--stall-after", "3"]
# code = "DD113"
# verdict = "hang"
# root_confidence = "suspected"
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 sends one message less than rank 0 expects, and computes on without any call. Rank 0's wait times out.

Healthy: Rank 1 sends its last message a second late.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from support.stamp import stamp

# if FAULTY
dist.init_process_group("gloo", timeout=timedelta(seconds=8))
# else
dist.init_process_group("gloo")
# end
rank = dist.get_rank()
tensor = torch.ones(256)
for microbatch in range(4):
    if rank == 0:
        stamp()
        dist.recv(tensor, 1)  # HERE rank 0
    # if FAULTY
    elif microbatch < 3:
    # else
    else:
        if microbatch == 3:
            time.sleep(1)
    # end
        dist.send(tensor, 0)
# if FAULTY
stamp()
if rank == 1:
    weights = torch.randn(256, 256)
    while True:
        weights = torch.tanh(weights @ weights)
# end
dist.destroy_process_group()
