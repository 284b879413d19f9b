# /// truth
# nproc = 2
# healthy = true
# run_options = ["--stall-after", "4"]
# ///
"""The program is told of as many ranks as the launcher starts, and joins its world three times."""

import os

import torch.distributed as dist

rank = int(os.environ["RANK"])
for time in range(3):
    port = 10000 + int(os.environ["MASTER_PORT"]) % 20000 + time
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    dist.barrier()
    dist.destroy_process_group()
