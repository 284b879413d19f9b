# /// truth
# nproc = 2
# seconds = 12
#
# [faulty]
# code = "DD502"
# verdict = "healthy"
# root_confidence = "supported"
# says = "out of memory in about"
# why = "it was held at its limit"
# ranks = { root = [1], victims = [] }
# [healthy]
# ///
"""Rank 1 keeps 16 MB of every step and has a control group that is full after some ninety. The job ends before that. Pages
of a file fill the rest of the group, and are given back when there is need. Where no group can be made, the job says so.

Healthy: Rank 1 keeps 16 MB of every step and gives all of it back after every thirtieth, in a control group that is never
full but for the pages of a file, which are given back when there is need. Where no group can be made, the job says so.
"""

import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NAME = "ddp-doctor-test-"


def group_with_a_limit(mib):
    """Puts this process into a control group that may take so much; false where that cannot be done."""
    with open("/proc/self/cgroup") as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    paths = ["/sys/fs/cgroup/memory" + path for _, names, path in lines if "memory" in names.split(",")]
    limit = "memory.limit_in_bytes"
    if not paths:
        paths = ["/sys/fs/cgroup" + path for _, names, path in lines if not names]
        limit = "memory.max"
    own = os.path.join(paths[0], NAME + str(os.getpid()))
    try:
        for name in os.listdir(paths[0]):
            if name.startswith(NAME) and not os.path.exists("/proc/" + name[len(NAME) :]):
                os.rmdir(os.path.join(paths[0], name))  # of an earlier run
        os.mkdir(own)
        with open(os.path.join(own, limit), "w") as file:
            file.write(str(mib << 20))
        with open(os.path.join(own, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
    except OSError as error:
        print("SKIPPED: no limit can be set here:", error, flush=True)
        return False
    return True


def read_a_file(mib):
    """Has the kernel keep the pages of a file, of which nothing is on the disk."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mib << 20)
        while file.read(1 << 20):
            pass
        return os.dup(file.fileno())  # as long as it is open they are kept


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
limited = torch.ones(1)
if rank == 1 and not group_with_a_limit(1500):
    limited.zero_()
elif rank == 1:
    pages = read_a_file(1500)
dist.broadcast(limited, src=1)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(65):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    if rank == 1 and limited:
        kept.append(torch.ones(16 << 20, dtype=torch.uint8))
        # if HEALTHY
        if len(kept) == 30:
            kept.clear()
        # end
    time.sleep(0.15)
dist.destroy_process_group()
