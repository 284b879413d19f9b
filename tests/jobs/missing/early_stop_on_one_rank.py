# /// truth
# nproc = 2
#
# [faulty]
# code = "DD103"
# verdict = "hang"
# root_confidence = "suspected"
# cause = "local-decision"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Each rank decides by its own loss when to stop: rank 1 stops first.

Healthy: The ranks agree by an all_reduce when to stop.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
best, patience = float("inf"), 0
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).pow(2).sum()
    loss.backward()  # HERE rank 0
    optimizer.step()
    # if FAULTY
    worse = (step >= 2) if rank else False  # what a loss of its own may come to
    # else
    worse = (step >= 2) if rank else False
    # end
    patience = patience + 1 if worse else 0
    # if HEALTHY
    votes = torch.tensor([float(patience)])
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    patience = int(votes)
    # end
    if patience >= 3:
        break
dist.barrier()  # HERE rank 1
dist.destroy_process_group()
