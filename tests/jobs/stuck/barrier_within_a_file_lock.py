# /// truth
# nproc = 3
# decisive = "stamp"
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""The first rank that gets a file lock meets its peers in a barrier before it releases the lock, for which they wait.

Healthy: The barrier comes after the lock.
"""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from filelock import FileLock

from support.stamp import stamp


def tokenize(cache):
    with FileLock(f"{cache}.lock"):  # HERE rank 0 2
        if not cache.exists():
            cache.write_text("tokens")
        # if FAULTY
        stamp()
        dist.barrier()  # HERE rank 1
        # end
    # if HEALTHY
    dist.barrier()
    # end
    return cache.read_text()


dist.init_process_group("gloo")
rank = dist.get_rank()
cache = Path(tempfile.gettempdir(), f"tokens-{os.getppid()}")
loss = torch.ones(1)
dist.all_reduce(loss)
if rank != 1:
    time.sleep(1)
tokenize(cache)
for step in range(4):
    dist.all_reduce(loss)
if rank == 0:
    cache.unlink()
    cache.with_name(f"{cache.name}.lock").unlink(missing_ok=True)
dist.destroy_process_group()
