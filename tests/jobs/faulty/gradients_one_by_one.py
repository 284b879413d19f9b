# /// truth
# nproc = 2
# code = "DD605"
# root = [0, 1]
# root_confidence = "supported"
# says = "of the time goes into small all_reduce calls, 80 a round"
# seconds = 16
# ///
"""The program averages its gradients by itself, one all_reduce for each of 80 small parameters."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(width, width + 1) for width in range(8, 48)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
begin = time.monotonic()
going = torch.ones(1)
step = 0
while going.item():
    optimizer.zero_grad()
    model(torch.randn(8, 8)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # HERE rank 0 1
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    step += 1
    # All stop in the same step.
    going[0] = step < 40 or time.monotonic() < begin + 14
    dist.broadcast(going, 0)
dist.destroy_process_group()
