# /// truth
# nproc = 2
# code = "DD115"
# root = [0, 1]
# root_confidence = "supported"
# ///
"""Gradients are averaged asynchronously, and used without waiting for the result."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    model(torch.ones(8, 256)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, async_op=True)  # HERE rank 0 1
    time.sleep(0.05)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
