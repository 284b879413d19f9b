# /// truth
# nproc = 2
# healthy = true
# ///
"""Rank 1 waits for the lock file of a build that another thread ends after seconds."""

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
    threading.Timer(4, os.remove, [lock]).start()


def build():
    baton = FileBaton(lock)
    if baton.try_acquire():
        baton.release()
    else:
        baton.wait()


build()
for step in range(8):
    dist.all_reduce(tensor)
dist.destroy_process_group()
