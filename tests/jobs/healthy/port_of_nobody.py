# /// truth
# nproc = 2
# healthy = true
# ///
"""The program sets another port for all ranks, and has rank 0 keep the store there, not the launcher."""

import os

import torch.distributed as dist

os.environ["MASTER_PORT"] = str(10000 + int(os.environ["MASTER_PORT"]) % 20000)
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
