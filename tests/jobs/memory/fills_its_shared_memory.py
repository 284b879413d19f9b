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
# says = "/dev/shm of host"
# why = "of 600 MiB"
# ranks = { root = [], victims = [0, 1] }
# [healthy]
# ///
"""Rank 1 leaves a file in /dev/shm at every step, which nobody removes. The job ends before there is no room left.

Healthy: Rank 1 leaves a file in /dev/shm at every step, for a hundred steps, and removes two in each of the next hundred.
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
batch = bytes(5 << 18)
for step in range(340):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    with open("/dev/shm/batch-%d-%d" % (rank, step), "wb") as file:
        file.write(batch)
    if rank == 0:
        os.remove(file.name)
    # if HEALTHY
    elif step % 200 >= 100:
        oldest = step // 200 * 200 + 2 * (step % 200 - 100)
        for old in (oldest, oldest + 1):
            os.remove("/dev/shm/batch-1-%d" % old)
    # end
    time.sleep(0.02)
dist.destroy_process_group()
