# /// truth
# nproc = 2
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD102"
# # No cause: the record does not state where the rank ended.
# verdict = "hang"
# root_confidence = "proved"
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 leaves by os._exit(0) in the middle of the training: no handler runs, nothing is said.

Healthy: All ranks leave by os._exit(0), after their last call.
"""

import os
import time

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
for step in range(8):
    # if FAULTY
    if rank == 1 and step == 4:
        stamp()
        os._exit(0)
    # end
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
# if FAULTY
dist.destroy_process_group()
# else
time.sleep(rank)
os._exit(0)
# end
