# /// truth
# nproc = 3
# code = "DD306"
# root = [1]
# root_confidence = "supported"
# hang = true
# run_options = ["--stall-after", "8"]
# says = "rank 1 has TORCH_DISTRIBUTED_DEBUG=DETAIL"
# ///
"""The environment of one rank asks for debugging in detail, which makes calls of its own: that rank waits for the others in
the group that it makes for them."""

import os

if os.environ["RANK"] == "1":  # as a profile of that host would have it
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"

import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # HERE rank 1
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
