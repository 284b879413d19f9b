# /// truth
# nproc = 3
# code = "DD202"
# root = [1]
# root_confidence = "proved"
# hang = false
# ///
"""Rank 1 raises before it joins the process group, and the others are already waiting for it."""

import os
import time

import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(1)  # the others are in init_process_group by now
    raise ValueError("no such data set")  # HERE rank 1
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
