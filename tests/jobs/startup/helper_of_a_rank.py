# /// truth
# nproc = 2
# quick = ["healthy"]
# launcher = "torchrun"
# [healthy]
# ///
"""A rank starts helpers with PyTorch and another PYTHONPATH, as `torch.compile` does for its workers until 2.14: one before it
is recorded itself, and one after.
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist


def help():
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if "ddp_doctor" not in path))
    subprocess.run([sys.executable, "-c", "import time, torch; time.sleep(3)"], env=environment, check=True)


if os.environ["RANK"] == "0":
    help()
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    help()
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
