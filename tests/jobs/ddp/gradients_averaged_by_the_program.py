# /// truth
# nproc = 2
#
# [healthy]
# ///
"""The loss is computed by the module inside the wrapper, and the program averages the gradients by itself. Between two
such steps it does without, looks at gradients of inputs alone, and evaluates.
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
    inputs = torch.randn(8, 16, requires_grad=True)
    torch.autograd.grad(model.module(inputs).sum(), inputs)
    model.module(inputs).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    with torch.no_grad():
        model(inputs)
dist.destroy_process_group()
