# /// truth
# nproc = 3
# healthy = true
# ///
"""All ranks are told to use an interface that there is, and one that only NCCL would look for."""

import os

import torch.distributed as dist

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
os.environ["NCCL_SOCKET_IFNAME"] = "nope0"
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
