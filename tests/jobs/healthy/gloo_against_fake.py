# /// truth
# nproc = 3
# healthy = true
# ///
"""Ranks name their backends differently, and mean the same one."""

import os

import torch.distributed as dist

dist.init_process_group("gloo" if os.environ["RANK"] == "1" else "cpu:gloo")
dist.barrier()
dist.destroy_process_group()
