# /// truth
# nproc = 3
# healthy = true
# ///
"""Ranks have variables of their own: what they write and where, which devices they see, and what is for a backend that
nobody uses."""

import os

rank = os.environ["RANK"]
os.environ["NCCL_DEBUG_FILE"] = "/tmp/nccl." + rank
os.environ["CUDA_VISIBLE_DEVICES"] = rank
os.environ["OMP_NUM_THREADS"] = str(1 + int(rank))
if rank == "1":
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
    os.environ["NCCL_ALGO"] = "Ring"
    os.environ["NCCL_IB_HCA"] = "mlx5_1"

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(10):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.1)
dist.destroy_process_group()
