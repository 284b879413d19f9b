# /// truth
# nproc = 2
# code = "DD301"
# root = [0, 1]
# root_confidence = "suspected"
# says = "all ranks of the world have come"
# hang = true
# run_options = ["--stall-after", "4"]
# ///
"""The program sets another port for all ranks: the launcher keeps the store, and keeps it elsewhere."""

import os

import torch.distributed as dist

os.environ["MASTER_PORT"] = str(10000 + int(os.environ["MASTER_PORT"]) % 20000)
dist.init_process_group("gloo")  # HERE rank 0 1
dist.barrier()
dist.destroy_process_group()
