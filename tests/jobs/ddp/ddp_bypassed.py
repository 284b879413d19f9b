# /// truth
# nproc = 2
# quick = ["faulty"]
# [faulty]
# code = "DD405"
# verdict = "wrong"
# root_confidence = "supported"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""The loss is computed by the module inside the wrapper: nobody averages its gradients, and nothing fails.

Healthy: The loss is computed by the wrapper.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    # if FAULTY
    loss = model.module(torch.randn(8, 16)).sum()
    # else
    loss = model(torch.randn(8, 16)).sum()
    # end
    loss.backward()  # HERE rank 0 1
    optimizer.step()
    dist.all_reduce(loss.detach())
dist.destroy_process_group()
