# /// truth
# nproc = 2
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# says = "waits for a store key that is not set"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 waits in the store for a key, and rank 0 sets one of another name.

Healthy: Rank 0 sets the key a second later.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
dist.all_reduce(torch.ones(8))
if rank == 0:
    # if FAULTY
    store.set("checkpoints", "100")
    # else
    time.sleep(1)
    store.set("checkpoint", "100")
    # end
else:
    store.wait(["checkpoint"], timedelta(minutes=5))  # HERE rank 1
dist.barrier()  # HERE rank 0
dist.destroy_process_group()
