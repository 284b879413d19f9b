# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD201"
# verdict = "crash"
# root_confidence = "proved"
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 leaves by os._exit(3) in the middle of the training.

Healthy: A child that rank 1 forked leaves by os._exit(3), and rank 1 deals with it.
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
    if rank == 1 and step == 4:
        # if FAULTY
        stamp()
        os._exit(3)
        # else
        child = os.fork()
        if child == 0:
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        # end
    dist.all_reduce(tensor)  # HERE rank 0
    time.sleep(0.05)
dist.destroy_process_group()
