# /// truth
# nproc = 2
# quick = ["healthy"]
# [healthy]
# ///
"""The world is destroyed directly after a backward, together with the last reference to it, and made again.

Its destructor joins Gloo's threads and keeps the interpreter's lock, which these need if they release a tensor that has a Python
object.
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = os.path.join(tempfile.gettempdir(), "ddp-doctor-test-%d-%s" % (os.getppid(), os.environ["MASTER_PORT"]))
os.makedirs(folder, exist_ok=True)
for world in range(16):
    store = "file://%s/%d" % (folder, world)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    for _ in range(3):
        model(torch.ones(4, 64)).sum().backward()
    dist.destroy_process_group()
    del model
