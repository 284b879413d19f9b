# /// truth
# nproc = 3
# code = "DD301"
# root = [1]
# root_confidence = "supported"
# says = "killed by SIGKILL"
# ///
"""One rank is killed before it joins the others, and the launcher ends the rest."""

import os
import signal
import time

import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(6)
    os.kill(os.getpid(), signal.SIGKILL)
dist.init_process_group("gloo")  # HERE rank 0 2
dist.barrier()
dist.destroy_process_group()
