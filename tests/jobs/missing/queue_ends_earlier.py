# /// truth
# nproc = 2
# [faulty]
# code = "DD103"
# cause = "uneven-inputs"
# why = "`item is None`"
# hang = true
# ranks = { root = [0, 1] }
# [healthy]
# ///
"""A thread of each rank fills a queue and ends it with None. The queue of rank 0 has one item less.

Healthy: The queues have the same number of items.
"""

import queue
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
items = 6
# if FAULTY
if rank == 0:
    items = 5
# end
jobs = queue.Queue(maxsize=2)


def fill():
    for number in range(items):
        jobs.put(number)
    jobs.put(None)


threading.Thread(target=fill).start()
while True:
    item = jobs.get()
    if item is None:
        break
    gradient = torch.full((4,), float(item))
    dist.all_reduce(gradient)  # HERE rank 1
dist.barrier()  # HERE rank 0
dist.destroy_process_group()
