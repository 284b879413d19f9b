# /// truth
# nproc = 2
# code = "DD301"
# root = [2]
# root_confidence = "supported"
# says = "no process of rank 2 was seen"
# hang = true
# run_options = ["--stall-after", "4"]
# ///
"""The program is told of more ranks than the launcher starts."""

import os

import torch.distributed as dist

dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=3)  # HERE rank 0 1
dist.barrier()
dist.destroy_process_group()
