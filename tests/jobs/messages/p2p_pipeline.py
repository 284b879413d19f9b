# /// truth
# nproc = 3
#
# [healthy]
# ///
"""Three pipeline stages, one forward and one backward for each of several microbatches, all blocking."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
first, last = rank == 0, rank == world - 1
stage = torch.nn.Linear(16, 16)
for step in range(3):
    inputs, outputs = [], []
    for microbatch in range(4):
        x = torch.randn(8, 16)
        if not first:
            dist.recv(x, rank - 1, tag=microbatch)
        x.requires_grad_()
        y = stage(x)
        if not last:
            dist.send(y.detach(), rank + 1, tag=microbatch)
        inputs.append(x)
        outputs.append(y)
    for microbatch in range(4):
        gradient = torch.ones(8, 16)
        if not last:
            dist.recv(gradient, rank + 1, tag=100 + microbatch)
        outputs[microbatch].backward(gradient)
        if not first:
            dist.send(inputs[microbatch].grad, rank - 1, tag=100 + microbatch)
    for parameter in stage.parameters():
        dist.all_reduce(parameter.grad)
dist.destroy_process_group()
