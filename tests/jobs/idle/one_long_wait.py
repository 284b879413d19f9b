# /// truth
# nproc = 2
# seconds = 30
# [scenario.python.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# [scenario.event.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# [scenario.command.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# [scenario.thread.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# ///
"""Rank 0 waits once before it goes on: its peer may wait for long, but the job is not ended.

Arguments: for what it waits, and the variant.
python: it sleeps. event: an event that nobody sets, with a timeout. command: a child process that sleeps. thread: a
thread that sleeps, and has no frame of Python.
"""

import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

KIND = sys.argv[1]
SECONDS = 20


def upload():
    if KIND == "python":
        time.sleep(SECONDS)
    elif KIND == "event":
        threading.Event().wait(SECONDS)
    elif KIND == "command":
        subprocess.run(["sleep", str(SECONDS)], check=True, timeout=60)
    else:
        thread = threading.Thread(target=time.sleep, args=(SECONDS,))
        thread.start()
        thread.join()


dist.init_process_group("gloo")
loss = torch.ones(1)
for step in range(8):
    if dist.get_rank() == 0 and step == 4:
        upload()
    dist.all_reduce(loss)
dist.destroy_process_group()
