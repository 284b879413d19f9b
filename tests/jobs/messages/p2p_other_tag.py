# /// truth
# nproc = 2
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD113"
# verdict = "hang"
# root_confidence = "suspected"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [faulty.nccl]
# harmless = true
# [healthy]
# ///
"""Two pipeline stages number their messages by microbatch, one from 0 and the other from 1.

Healthy: Two pipeline stages number their messages by microbatch; the receiver takes them in another order than they were sent.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
# if FAULTY
tensor = torch.ones(256)
dist.barrier()
for microbatch in range(4):
    stamp()
    if rank == 0:
        dist.send(tensor, 1, tag=microbatch)  # HERE rank 0
    else:
        dist.recv(tensor, 0, tag=microbatch + 1)  # HERE rank 1
# else
if rank == 0:
    works = [dist.isend(torch.full((256,), float(tag)), 1, tag=tag) for tag in range(4)]
    for work in works:
        work.wait()
else:
    for tag in (2, 0, 3, 1):
        tensor = torch.zeros(256)
        dist.recv(tensor, 0, tag=tag)
        assert tensor[0] == tag
# end
dist.destroy_process_group()
