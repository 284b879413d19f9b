# /// truth
# nproc = 4
# [faulty]
# code = "DD110"
# verdict = "wrong"
# root_confidence = "supported"
# cause = "skipped-iteration"
# ranks = { root = [1, 2], victims = [0, 3] }
# says = "ranks 1 and 2"
# [healthy]
# ///
"""Rank 1 skips the backward of its step 3 and rank 2 that of its step 9; both go on until the others stop.

Healthy: All ranks skip the same steps.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
# if FAULTY
bad = {1: 3, 2: 9}.get(rank)
# else
bad = 3
# end
step = averaged = 0
while averaged < 16:
    step += 1
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).sum()
    if step == bad:
        continue
    loss.backward()  # HERE rank 0 1 2 3
    averaged += 1
    optimizer.step()
dist.destroy_process_group()
