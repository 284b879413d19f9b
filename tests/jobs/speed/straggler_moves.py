# /// truth
# nproc = 3
# alone = true
# seconds = 16
#
# [faulty]
# code = "DD601"
# verdict = "slow"
# root_confidence = "supported"
# says = "because it takes longer between two collectives"
# ranks = { root = [2], victims = [0, 1] }
# ///
"""First rank 1 is slow, and then rank 2: what is named at the end is who is slow then."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(16, 4))
begin = time.monotonic()
state = torch.zeros(1)
while state.item() < 12:
    slow = 1 if state.item() < 6 else 2
    loss = model(torch.randn(8, 16)).sum()
    time.sleep(0.2 if rank == slow else 0.06)
    loss.backward()  # HERE rank 0 1
    # All go by one clock.
    state[0] = time.monotonic() - begin
    dist.broadcast(state, 0)
dist.destroy_process_group()
