# /// truth
# nproc = 3
# launcher = "torchrun"
# [faulty]
# code = "DD117"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# run_options = ["--stall-after", "3"]
# ranks = { root = [0], victims = [1, 2] }
# [healthy]
# ///
"""Distributed checkpointing: rank 0 alone saves in the background, in a group of its own, which every rank has to.

Healthy: All ranks save.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
saving = dist.new_group(backend="gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder)
saved = None
for step in range(4):
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        state = {"model": model.module.state_dict()}
        # if FAULTY
        if rank == 0:
            saved = checkpoint.async_save(state, checkpoint_id=folder[0], process_group=saving)  # HERE rank 0
        # else
        saved = checkpoint.async_save(state, checkpoint_id=folder[0], process_group=saving)
        # end
if saved is not None:
    saved.result()
dist.barrier()  # HERE rank 1 2
dist.destroy_process_group()
