# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD112"
# verdict = "hang"
# root_confidence = "proved"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [faulty.nccl]
# headline = "ranks 0 and 1 receive before they send"
# root_confidence = "supported"
# [healthy]
# ///
"""Two ranks exchange tensors; from the third step on both receive before they send.

Healthy: Two ranks exchange tensors: rank 0 sends first, rank 1 receives first.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
peer = 1 - rank
mine, theirs = torch.ones(256), torch.zeros(256)
for step in range(4):
    # if FAULTY
    if rank == 0 and step < 2:
    # else
    if rank == 0:
    # end
        dist.send(mine, peer)
        dist.recv(theirs, peer)
    else:
        stamp()
        dist.recv(theirs, peer)  # HERE rank 0 1
        dist.send(mine, peer)
dist.destroy_process_group()
