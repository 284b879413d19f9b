# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD102"
# verdict = "hang"
# root_confidence = "proved"
# ranks = { root = [1], victims = [0] }
# [faulty.nccl]
# harmless = true
# [healthy]
# ///
"""Rank 1 sends one message less than rank 0 expects, and ends.

Healthy: Rank 1 sends as many messages as rank 0 expects, and ends long before it.
"""

import time

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for microbatch in range(4):
    if rank == 0:
        dist.recv(tensor, 1)  # HERE rank 0
    # if FAULTY
    elif microbatch < 3:
    # else
    else:
    # end
        dist.send(tensor, 0)
# if HEALTHY
if rank == 0:
    time.sleep(2)
# end
stamp()
