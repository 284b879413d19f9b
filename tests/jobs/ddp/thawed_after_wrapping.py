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
"""The body of the model is frozen when DDP wraps it, and trained from the third step on: its gradients are not averaged.

Healthy: The model is wrapped again when the body is thawed.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
body, head = torch.nn.Linear(16, 8), torch.nn.Linear(8, 4)
body.requires_grad_(False)
model = DistributedDataParallel(torch.nn.Sequential(body, head))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for step in range(8):
    if step == 2:
        body.requires_grad_(True)
        # if FAULTY
        # else
        model = DistributedDataParallel(model.module)
        # end
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()  # HERE rank 0 1
    optimizer.step()
    dist.all_reduce(loss.detach())
dist.destroy_process_group()
