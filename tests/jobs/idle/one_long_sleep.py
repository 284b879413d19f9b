# /// truth
# nproc = 2
# seconds = 30
# [scenario.python.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# [scenario.command.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# ///
"""Rank 0 sleeps once before it goes on: its peer may wait for long, but the job is not ended.

Arguments: who sleeps, and the variant.
python: the rank itself. command: a child process for which it waits.
"""

import subprocess
import sys
import time

import torch
import torch.distributed as dist

KIND = sys.argv[1]
SECONDS = 20


def upload():
    if KIND == "python":
        time.sleep(SECONDS)
    else:
        subprocess.run(["sleep", str(SECONDS)], check=True)


dist.init_process_group("gloo")
loss = torch.ones(1)
for step in range(8):
    if dist.get_rank() == 0 and step == 4:
        upload()
    dist.all_reduce(loss)
dist.destroy_process_group()
