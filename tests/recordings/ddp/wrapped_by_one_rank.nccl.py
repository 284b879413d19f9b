# /// truth
# nproc = 2
# run_options = ["--stall-after", "8"]
#
# [faulty]
# code = "DD204"
# verdict = "hang"
# why = "constructor of DistributedDataParallel"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""One rank wraps its model, and waits there for the other one, which waits for something else.

Healthy: One rank wraps its model, and waits there for the other one, which comes a few seconds later.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = torch.nn.Linear(16, 4)
if dist.get_rank() == 1:
    # if FAULTY
    time.sleep(1000)  # HERE rank 1
    # else
    time.sleep(4)
    # end
model = DistributedDataParallel(model)  # HERE rank 0
model(torch.ones(2, 16)).sum().backward()
dist.destroy_process_group()
