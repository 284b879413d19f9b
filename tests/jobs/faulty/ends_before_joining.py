# /// truth
# nproc = 3
# code = "DD301"
# root = [1]
# root_confidence = "supported"
# says = "rank 1 ended before joining the world, with status 0"
# hang = true
# ///
"""One rank takes itself for superfluous, and ends in order before it joins the others."""

import os
import sys
import time

import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(4)
    sys.exit()
dist.init_process_group("gloo")  # HERE rank 0 2
dist.barrier()
dist.destroy_process_group()
