"""/// truth
nproc = 3
codes = ["DD201", "DD204"]
root = [1]
plain = true
///"""
import os
import signal
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
store.set_timeout(timedelta(hours=1))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
store.wait(["evaluated/1"])  # HERE rank 0 2
