# /// truth
# nproc = 2
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "suspected"
# cause = "local-decision"
# why = "rank 1 waits there while rank 0 decides"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Rank 0 prepares data before the others, and once more inside, as it finds no vocabulary. The others find it, and meet one barrier less.

Healthy: All ranks enter the inner block, whether there is a vocabulary or not.
"""

import contextlib
import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@contextlib.contextmanager
def main_process_first():
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()  # HERE rank 0


def build(path):
    if not os.path.exists(path):
        torch.save(list(range(64)), path)


def vocabulary(directory):
    path = os.path.join(directory, "vocabulary.pt")
    # if FAULTY
    if not os.path.exists(path):
        with main_process_first():
            build(path)
    # else
    with main_process_first():
        build(path)
    # end
    return torch.load(path)


dist.init_process_group("gloo")
shared = [tempfile.mkdtemp()]
dist.broadcast_object_list(shared)
with main_process_first():
    words = vocabulary(shared[0])
model = DistributedDataParallel(torch.nn.Linear(len(words), 4))  # HERE rank 1
for step in range(5):
    model(torch.randn(8, len(words))).sum().backward()
dist.destroy_process_group()
