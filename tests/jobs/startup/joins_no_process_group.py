# /// truth
# nproc = 2
# launcher = "torchrun"
#
# [scenario.own_group]
# faulty = { code = "DD901", verdict = "insufficient", severity = "note", ranks = { root = [] }, says = "ranks 0 and 1 started and were not seen to join a process group" }
# healthy = {}
# [scenario.remote_calls]
# faulty = { code = "DD901", verdict = "insufficient", severity = "note", ranks = { root = [] }, says = "ranks 0 and 1 started and were not seen to join a process group" }
# [scenario.one_process]
# nproc = 1
# faulty = { code = "DD901", verdict = "insufficient", severity = "note", ranks = { root = [] }, says = "the job is one process, which was not seen to join a process group" }
# healthy = {}
# ///
"""Ranks that never call init_process_group, so that nothing is recorded: joins_no_process_group.py SCENARIO faulty|healthy

Healthy: They call it.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

scenario, kind = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Processes that end sooner are not seen.
time.sleep(2)
if kind == "healthy":
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()
elif scenario == "own_group":
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, False)
    group = dist.ProcessGroupGloo(dist.PrefixStore("own", store), rank, world, datetime.timedelta(seconds=30))
    for step in range(4):
        group.allreduce([torch.ones(8)]).wait()
elif scenario == "remote_calls":
    from torch.distributed import rpc

    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world)
    if rank == 0:
        assert rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1)).sum() == 4
    rpc.shutdown()
