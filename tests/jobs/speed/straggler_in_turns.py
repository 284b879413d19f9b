# /// truth
# nproc = 3
# alone = true
# seconds = 18
#
# [faulty]
# code = "DD601"
# verdict = "slow"
# root_confidence = "supported"
# says = "keep the other ranks waiting in turn"
# ranks = { root = [1, 2], victims = [0] }
# [healthy]
# ///
"""Ranks 1 and 2 take turns at being slow, five steps each; rank 0 never is.

Healthy: Batches differ in length: in every step another rank has the longest, all as often as the others.
"""

import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(16, 4))
until = time.monotonic() + 16
going = torch.ones(1)
# if FAULTY
step = 0
# else
lengths = random.Random(0)
# end
while going.item():
    # if FAULTY
    slow = 1 + step // 5 % 2
    # else
    slow = lengths.randrange(3)
    # end
    loss = model(torch.randn(8, 16)).sum()
    time.sleep(0.16 if rank == slow else 0.05)
    loss.backward()  # HERE rank 0
    # if FAULTY
    step += 1
    # end
    # All stop in the same step.
    going[0] = time.monotonic() < until
    dist.broadcast(going, 0)
dist.destroy_process_group()
