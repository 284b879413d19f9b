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

Healthy: Rank 1 leaves a file in /dev/shm at every step, and removes them all after every hundredth.
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
start = time.monotonic()
for step in range(340):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    with open("/dev/shm/batch-%d-%d" % (rank, step), "wb") as file:
        file.write(batch)
    if rank == 0:
        os.remove(file.name)
    # if HEALTHY
    elif step % 100 == 99:
        for before in range(step - 99, step + 1):
            os.remove("/dev/shm/batch-1-%d" % before)
    # end
    time.sleep(max(0, start + 0.02 * (step + 1) - time.monotonic()))
dist.destroy_process_group()
