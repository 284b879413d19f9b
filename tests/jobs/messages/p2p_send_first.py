# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD112"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [faulty.nccl]
# code = "DD202"
# verdict = "crash"
# root_confidence = "suspected"
# hang = false
# [healthy]
# [healthy.nccl]
# code = "DD202"
# verdict = "crash"
# ranks = { root = [0, 1], victims = [] }
# lines = { 0 = ["work = dist.isend(mine, peer)"], 1 = ["work = dist.isend(mine, peer)"] }
# ///
"""Two ranks both send first. On Gloo a send waits for its receive, however small it is.

Healthy: Two ranks both send first, without waiting for it before they have received.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
peer = 1 - rank
mine, theirs = torch.ones(4), torch.zeros(4)
# if FAULTY
stamp()
dist.send(mine, peer)  # HERE rank 0 1
dist.recv(theirs, peer)
# else
for step in range(4):
    work = dist.isend(mine, peer)
    dist.recv(theirs, peer)
    work.wait()
# end
dist.destroy_process_group()
