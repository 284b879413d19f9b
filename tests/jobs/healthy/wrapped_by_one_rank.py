# /// truth
# nproc = 2
# healthy = true
# run_options = ["--stall-after", "8"]
# ///
"""One rank wraps its model, and waits there for the other one, which comes a few seconds later."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = torch.nn.Linear(16, 4)
if dist.get_rank() == 1:
    time.sleep(4)
model = DistributedDataParallel(model)
model(torch.ones(2, 16)).sum().backward()
dist.destroy_process_group()
