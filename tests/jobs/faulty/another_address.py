# /// truth
# nproc = 3
# code = "DD303"
# root = [1]
# root_confidence = "supported"
# says = "address of the master"
# hang = true
# ///
"""One rank looks for the master at an address where nobody is (192.0.2.0/24 is kept free for
documentation)."""

import os

import torch.distributed as dist

if os.environ["RANK"] == "1":
    os.environ["MASTER_ADDR"] = "192.0.2.1"
dist.init_process_group("gloo")  # HERE rank 0 1 2
dist.barrier()
dist.destroy_process_group()
