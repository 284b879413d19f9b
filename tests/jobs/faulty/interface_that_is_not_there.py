# /// truth
# nproc = 3
# code = "DD308"
# root = [1]
# root_confidence = "proved"
# says = "nope0"
# ///
"""One rank is told to use a network interface that its host does not have."""

import os

import torch.distributed as dist

if os.environ["RANK"] == "1":
    os.environ["GLOO_SOCKET_IFNAME"] = "nope0"
dist.init_process_group("gloo")  # HERE rank 1
dist.barrier()
dist.destroy_process_group()
