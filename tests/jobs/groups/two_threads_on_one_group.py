# /// truth
# nproc = 2
#
# [faulty]
# code = "DD115"
# verdict = "healthy"
# root_confidence = "suspected"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""A thread that logs and one that trains use one group; which of them comes first is chance.

Healthy: Each of two threads has a group of its own.
"""

import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
# if HEALTHY
groups = [dist.new_group(), dist.new_group()]
# end


def train():
    for step in range(4):
        # if FAULTY
        dist.all_reduce(torch.ones(64))  # HERE rank 0
        # else
        dist.all_reduce(torch.ones(64), group=groups[0])
        # end
        time.sleep(0.4)


def log():
    for step in range(4):
        # if FAULTY
        dist.all_reduce(torch.full((64,), 2.0))  # HERE rank 1
        # else
        dist.all_reduce(torch.full((64,), 2.0), group=groups[1])
        # end
        time.sleep(0.4)


threads = [threading.Thread(target=train), threading.Thread(target=log)]
for thread in threads if rank == 0 else reversed(threads):
    thread.start()
    time.sleep(0.2)
for thread in threads:
    thread.join()
dist.barrier()
dist.destroy_process_group()
