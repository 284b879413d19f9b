# /// truth
# nproc = 2
# [faulty]
# code = "DD406"
# cause = "local-decision"
# hang = true
# why = "They have not done so since forward 2"
# ranks = { root = [0, 1] }
# [healthy]
# ///
"""Gradients are averaged whenever a rank has seen enough tokens: rank 0 sees longer texts, and averages more often in the
same number of batches.

Healthy: Gradients are averaged after every second batch.
"""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
texts = [torch.randn(6 if rank == 0 else 4, 8) for _ in range(12)]
tokens = 0
for batch in texts:
    tokens += len(batch)
    # if FAULTY
    is_boundary = tokens >= 12
    # else
    is_boundary = tokens >= 2 * len(batch)
    # end
    context = contextlib.nullcontext() if is_boundary else model.no_sync()
    with context:
        model(batch).square().mean().backward()  # HERE rank 0
    if is_boundary:
        optimizer.step()
        optimizer.zero_grad()
        tokens = 0
results = [None] * dist.get_world_size()
dist.all_gather_object(results, rank)  # HERE rank 1
dist.destroy_process_group()
