# /// truth
# nproc = 3
# healthy = true
# run_options = ["--stall-after", "30"]
# ///
"""All ranks enter collectives that take seconds, and complete."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(3 << 24)
work = dist.all_reduce(tensor, async_op=True)
work.wait()
for _ in range(2):
    dist.all_reduce(tensor)
dist.destroy_process_group()
