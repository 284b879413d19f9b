# /// truth
# nproc = 3
# healthy = true
# ///
"""One rank calls the master's host by another of its names."""

import os

import torch.distributed as dist

if os.environ["RANK"] == "1":
    os.environ["MASTER_ADDR"] = "127.0.0.1"
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
