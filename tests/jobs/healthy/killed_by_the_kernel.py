# /// truth
# nproc = 2
# healthy = true
# ///
"""Rank 1 has a control group of its own, which may have less than the host, and stays below that."""

import os
import time

import torch
import torch.distributed as dist

LIMIT = 1536 << 20
NAME = "ddp-doctor-test-"


def group_with_a_limit():
    """Puts this process into a control group of its own; false where that cannot be done."""
    with open("/proc/self/cgroup") as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    paths = ["/sys/fs/cgroup/memory" + path for _, names, path in lines if "memory" in names.split(",")]
    limit = "memory.limit_in_bytes"
    if not paths:
        paths = ["/sys/fs/cgroup" + path for _, names, path in lines if not names]
        limit = "memory.max"
    own = os.path.join(paths[0], NAME + str(os.getpid()))
    try:
        os.mkdir(own)
        with open(os.path.join(own, limit), "w") as file:
            file.write(str(LIMIT))
        with open(os.path.join(own, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
    except OSError as error:
        print("SKIPPED: no limit can be set here:", error, flush=True)
        return False
    return True


dist.init_process_group("gloo")
rank = dist.get_rank()
limited = torch.ones(1)
if rank == 1 and not group_with_a_limit():
    limited.zero_()
dist.broadcast(limited, src=1)
held = []
for step in range(8):
    if rank == 1 and step == 4 and limited:
        time.sleep(3)  # somebody may look at it
        for _ in range(50):
            held.append(torch.ones(16 << 20, dtype=torch.uint8))
    dist.all_reduce(limited, dist.ReduceOp.MIN)
dist.destroy_process_group()
