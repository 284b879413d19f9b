# /// truth
# nproc = 3
# healthy = true
# run_options = ["--stall-after", "20"]
# ///
"""One rank prepares something for a while before it joins the others."""

import os
import time

import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(8)
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
