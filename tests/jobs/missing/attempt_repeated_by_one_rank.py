# /// truth
# nproc = 2
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "suspected"
# cause = "swallowed-exception"
# why = "depends on whether an exception is caught"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Rank 1 fails to write a file between two collectives, and repeats the first one alone.

Healthy: It repeats the writing only.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
gradient, norm = torch.ones(32), torch.ones(4)


def write(step, attempt):
    if rank == 1 and step == 3 and attempt == 0:
        raise OSError("disk quota exceeded")


def repeatedly(function, step):
    for attempt in range(3):
        try:
            return function(step, attempt)
        except OSError as error:
            print("attempt", attempt, "failed:", error)


def train(step, attempt):
    dist.all_reduce(gradient)  # HERE rank 1
    # if FAULTY
    write(step, attempt)
    # else
    repeatedly(write, step)
    # end
    dist.broadcast(norm, 0)  # HERE rank 0


for step in range(6):
    # if FAULTY
    repeatedly(train, step)
    # else
    train(step, 0)
    # end
dist.destroy_process_group()
