# /// truth
# nproc = 3
# code = "DD304"
# root = [1]
# root_confidence = "supported"
# hang = true
# ///
"""One rank joins with another backend, one that needs no peers, and goes on by itself."""

import os
import time

import torch.distributed as dist

if os.environ["RANK"] == "1":
    dist.init_process_group("fake", rank=1, world_size=3)  # HERE rank 1
    dist.barrier()
    time.sleep(1000)
dist.init_process_group("gloo")  # HERE rank 0 2
dist.barrier()
dist.destroy_process_group()
