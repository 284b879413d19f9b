"""/// truth
nproc = 3
codes = ["DD204"]
root = [2]
blocked_on = "store-key"
says = "checkpoint/7"
///"""
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
store.set_timeout(timedelta(hours=1))
if dist.get_rank() == 2:
    store.get("checkpoint/7")  # HERE rank 2
dist.all_reduce(torch.ones(8))  # HERE rank 0 1
