"""Collectives of one kind on two ranks, of which one comes late: late.py OP LATE_RANK."""

import os
import sys
import time

import torch
import torch.distributed as dist

op, late = sys.argv[1], sys.argv[2]
if os.environ["RANK"] == late:
    time.sleep(2)
dist.init_process_group("gloo")
tensor = torch.ones(4)
for _ in range(5):
    if op == "all_reduce":
        dist.all_reduce(tensor)
    else:
        dist.broadcast(tensor, src=0)
dist.destroy_process_group()
