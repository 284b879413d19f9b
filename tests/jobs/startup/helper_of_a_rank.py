# /// truth
# nproc = 2
# quick = ["healthy"]
# [healthy]
# ///
"""A rank starts a helper with PyTorch and another PYTHONPATH, as `torch.compile` does for its workers until 2.14."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if "ddp_doctor" not in path))
    subprocess.run([sys.executable, "-c", "import time, torch; time.sleep(3)"], env=environment, check=True)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
