# /// truth
# nproc = 3
# decisive = "stamp"
#
# [faulty]
# code = "DD112"
# verdict = "hang"
# root_confidence = "proved"
# hang = true
# ranks = { root = [0, 1, 2], victims = [] }
# [faulty.nccl]
# headline = "ranks 0–2 all receive before they send"
# root_confidence = "supported"
# [healthy]
# [healthy.nccl]
# code = "DD112"
# verdict = "hang"
# hang = true
# headline = "ranks 0–2 all receive before they send"
# ranks = { root = [0, 1, 2], victims = [] }
# lines = { 0 = ["works = [dist.irecv"], 1 = ["works = [dist.irecv"], 2 = ["works = [dist.irecv"] }
# ///
"""A ring in which every rank waits for its left neighbour before it sends to its right one.

Healthy: A ring in which every rank issues its send and its receive before it waits, and then one in which rank 0 sends first.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
left, right = (rank - 1) % world, (rank + 1) % world
mine, theirs = torch.ones(256), torch.zeros(256)
# if FAULTY
stamp()
dist.recv(theirs, left)  # HERE rank 0 1 2
dist.send(mine, right)
# else
for step in range(4):
    works = [dist.irecv(theirs, left), dist.isend(mine, right)]
    for work in works:
        work.wait()
for step in range(4):
    if rank == 0:
        dist.send(mine, right)
        dist.recv(theirs, left)
    else:
        dist.recv(theirs, left)
        dist.send(mine, right)
# end
dist.destroy_process_group()
