# /// truth
# nproc = 3
# decisive = "stamp"
#
# [faulty]
# code = "DD112"
# verdict = "hang"
# root_confidence = "proved"
# hang = true
# ranks = { root = [0, 1], victims = [2] }
# [faulty.nccl]
# headline = "ranks 0 and 1 issue a message and a collective in different orders"
# root_confidence = "supported"
# [healthy]
# ///
"""Rank 0 is in the all_reduce of all ranks, rank 1 first waits for the message that rank 0 sends after it.

Healthy: All ranks make their all_reduce before rank 0 sends to rank 1.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
# if FAULTY
dist.all_reduce(tensor)
stamp()
if rank == 1:
    dist.recv(tensor, 0)  # HERE rank 1
dist.all_reduce(tensor)  # HERE rank 0
if rank == 0:
    dist.send(tensor, 1)
# else
for step in range(4):
    dist.all_reduce(tensor)
    if rank == 1:
        dist.recv(tensor, 0)
    if rank == 0:
        dist.send(tensor, 1)
# end
dist.destroy_process_group()
