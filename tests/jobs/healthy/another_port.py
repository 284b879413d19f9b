# /// truth
# nproc = 3
# healthy = true
# ///
"""All ranks agree on a port of their own, other than the launcher's."""

import os

import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = 10000 + int(os.environ["MASTER_PORT"]) % 20000
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
dist.barrier()
dist.destroy_process_group()
