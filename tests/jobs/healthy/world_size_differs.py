# /// truth
# nproc = 3
# healthy = true
# ///
"""One rank says how large the world is, and the others leave it to the launcher."""

import os

import torch.distributed as dist

rank = int(os.environ["RANK"])
if rank == 2:
    dist.init_process_group("gloo", rank=rank, world_size=3)
else:
    dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
