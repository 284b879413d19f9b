# /// truth
# nproc = 2
#
# [faulty]
# code = "DD506"
# verdict = "crash"
# root_confidence = "proved"
# says = "the kernel killed rank 1 because memory ran out"
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 needs more memory than its control group may have, and the kernel kills it. Where no group can be made
(that takes root, and control groups of version 1 or a delegated one), the job says so and does nothing.

Healthy: Rank 1 has a control group of its own, which may have less than the host, and stays below that.
"""

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
        # if FAULTY
        for name in os.listdir(paths[0]):
            if name.startswith(NAME) and not os.path.exists("/proc/" + name[len(NAME) :]):
                os.rmdir(os.path.join(paths[0], name))  # of an earlier run
        # end
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
        # if FAULTY
        while True:
        # else
        for _ in range(50):
        # end
            held.append(torch.ones(16 << 20, dtype=torch.uint8))
    dist.all_reduce(limited, dist.ReduceOp.MIN)  # HERE rank 0
dist.destroy_process_group()
