# /// truth
# nproc = 3
# healthy = true
# ///
"""All ranks agree on a port of their own, other than the launcher's."""

import os

import torch.distributed as dist

os.environ["MASTER_PORT"] = str(10000 + int(os.environ["MASTER_PORT"]) % 20000)
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
