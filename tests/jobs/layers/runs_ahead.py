# /// truth
# nproc = 3
# launcher = "torchrun"
# run_options = ["--stall-after", "4"]
# kill_after = "8"
# layers = ["c10d", "nccl"]
# [scenario.destroy]
# faulty = { code = "DD102", confidence = "proved", ranks = { root = [1] }, hang = true }
# healthy = {}
# ///
"""Three ranks of PyTorch over the double of NCCL run ahead of their devices into `destroy_process_group`, which blocks until
the calls before it are complete on all ranks. Rank 1 has left out the last one.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))

# Before PyTorch, which would load an NCCL of its own.
from doubled import register  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

register(False)
dist.init_process_group("nccl4py")
batches = 3 if sys.argv[2] == "faulty" and dist.get_rank() == 1 else 4
for batch in range(batches):
    dist.all_reduce(torch.ones(64))
dist.destroy_process_group()
print("done", flush=True)
