# /// truth
# nproc = 2
# launcher = "torchrun"
#
# [healthy]
# ///
"""The world is destroyed and initialised again, each time with a store of its own: in a store that
it used before, a rank may find the address that its peer had then.
"""

import os
import tempfile

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for generation in range(2):
    file = os.path.join(tempfile.gettempdir(), f"ddp-doctor-test-{os.getppid()}-{generation}")
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()
