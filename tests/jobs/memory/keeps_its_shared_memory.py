# /// truth
# nproc = 2
# shared_memory = "600m"
# seconds = 10
# alone = true
# environment = { DDP_DOCTOR_TIME_SCALE = "0.1" }
#
# [faulty]
# code = "DD506"
# verdict = "healthy"
# root_confidence = "supported"
# says = "/dev/shm of host"
# why = "Nearly all of that is shared memory"
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 keeps the tensors of every step in shared memory, which it has mapped itself: its own resident set grows by as
much. The job ends before there is no room left.

Healthy: Rank 1 keeps the tensors of a hundred steps in shared memory, which it has mapped itself, and lets go of two in each of
the next hundred.
"""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
room = os.statvfs("/dev/shm")
assert room.f_blocks * room.f_frsize == 600 << 20, "this is somebody else's"
with open("/proc/self/maps") as maps:
    assert any(" /dev/shm/ddp-doctor" in line for line in maps), "the black box is not in there"
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(340):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    batch = torch.ones(5 << 18, dtype=torch.uint8).share_memory_()
    if rank == 1:
        kept.append(batch)
        # if HEALTHY
        if step % 200 >= 100:
            del kept[:2]
        # end
    time.sleep(0.02)
dist.destroy_process_group()
