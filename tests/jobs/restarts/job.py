# /// truth
# nproc = 2
# launcher = "torchrun"
# environment = { PET_MAX_RESTARTS = "1", PET_MONITOR_INTERVAL = "0.1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE = "1" }
#
# [scenario.raises_once]
# faulty = { code = "DD202", verdict = "healthy", severity = "warning", attempt = 0, ranks = { root = [1] }, why = "The job recovered", says = "ValueError: a broken sample" }
# healthy = {}
# [scenario.raises_before_joining]
# faulty = { code = "DD202", verdict = "healthy", severity = "warning", attempt = 0, ranks = { root = [1] }, why = "The job recovered", says = "ValueError: no such data set" }
# [scenario.exits_once]
# faulty = { code = "DD201", verdict = "healthy", severity = "warning", attempt = 0, ranks = { root = [1] }, why = "The job recovered" }
# [scenario.killed_once]
# faulty = { code = "DD201", verdict = "healthy", severity = "warning", attempt = 0, ranks = { root = [1] }, why = "The job recovered" }
# [scenario.raises_in_every_attempt]
# faulty = { code = "DD202", verdict = "crash", severity = "critical", attempt = 1, earlier = "DD202", ranks = { root = [1] }, why = "This is attempt 1" }
# [scenario.hangs_after_a_restart]
# faulty = { code = "DD102", verdict = "hang", severity = "error", attempt = 1, earlier = "DD202", ranks = { root = [1], victims = [0] }, why = "This is attempt 1", hang = true }
# [scenario.start_hangs_after_a_restart]
# run_options = ["--stall-after", "8"]
# faulty = { code = "DD301", verdict = "hang", severity = "error", attempt = 1, earlier = "DD202", ranks = { root = [1], victims = [0] }, says = "after restart 1", hang = true }
# ///
"""A job that torchrun restarts once: job.py SCENARIO faulty|healthy

What goes wrong is on rank 1 of two, and at the head of each scenario. Each start has a store of its own: in that of the
start before, ranks may find addresses of processes that have ended.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

scenario, kind = sys.argv[1:]
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
wrong = kind == "faulty" and rank == 1
first, second = wrong and attempt == 0, wrong and attempt == 1

if first and scenario == "raises_before_joining":
    time.sleep(1)
    raise ValueError("no such data set")
if second and scenario == "start_hangs_after_a_restart":
    time.sleep(1000)
dist.init_process_group("gloo")
tensor = torch.ones(64)
for step in range(8):
    if first and step == 3:
        if scenario == "exits_once":
            os._exit(3)
        if scenario == "killed_once":
            os.kill(os.getpid(), signal.SIGKILL)
        if scenario != "raises_before_joining":
            raise ValueError("a broken sample")
    if second and step == 3:
        if scenario == "raises_in_every_attempt":
            raise ValueError("a broken sample")
        if scenario == "hangs_after_a_restart":
            break
    dist.all_reduce(tensor)
    time.sleep(0.05)
if second and scenario == "hangs_after_a_restart":
    os._exit(0)
dist.destroy_process_group()
