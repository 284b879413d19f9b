# /// truth
# nproc = 3
# healthy = true
# ///
"""One rank is superfluous and ends in order: the others form a world without it."""

import os
import sys
import time

import torch.distributed as dist

rank = int(os.environ["RANK"])
if rank == 2:
    time.sleep(4)
    sys.exit()
dist.init_process_group("gloo", rank=rank, world_size=2)
dist.barrier()
dist.destroy_process_group()
