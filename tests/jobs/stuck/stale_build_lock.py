# /// truth
# nproc = 2
#
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# says = "the lock file of another build"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""A build that was killed has left its lock file, and rank 1 waits for it to go away.

Healthy: Rank 1 waits for the lock file of a build that another thread ends after seconds.
"""

import os
import tempfile
import threading

import torch
import torch.distributed as dist
from torch.utils.file_baton import FileBaton

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
lock = os.path.join(tempfile.mkdtemp(), "lock")
if rank == 1:
    open(lock, "w").close()
    # if HEALTHY
    threading.Timer(4, os.remove, [lock]).start()
    # end


def build():
    baton = FileBaton(lock)
    if baton.try_acquire():
        baton.release()
    else:
        baton.wait()  # HERE rank 1


build()
for step in range(8):
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
