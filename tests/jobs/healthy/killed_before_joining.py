# /// truth
# nproc = 3
# healthy = true
# seconds = 6
# ///
"""Before one rank joins, a helper that it had started is killed; the rank itself is late, and comes."""

import os
import subprocess
import time

import torch.distributed as dist

if os.environ["RANK"] == "1":
    helper = subprocess.Popen(["sleep", "60"])
    time.sleep(6)
    helper.kill()
    helper.wait()
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
