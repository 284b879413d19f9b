# /// truth
# nproc = 2
#
# [faulty]
# code = "DD115"
# verdict = "healthy"
# root_confidence = "supported"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Gradients are averaged asynchronously, and used without waiting for the result.

Healthy: Asynchronous work that is waited for in every other way there is.
"""

import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager

dist.init_process_group("gloo")
# if FAULTY
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
# else
group = dist.group.WORLD
tensor = torch.ones(256)
kept = []
# end
for step in range(6):
# if FAULTY
    optimizer.zero_grad()
# else
    # By its future, at once and by a callback.
    dist.all_reduce(tensor, async_op=True).get_future().wait()
    done = dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value())
    done.wait()
    # By looking at it.
    work = dist.all_gather_into_tensor(torch.empty(512), tensor, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    # Together with others.
    with _coalescing_manager(group, async_ops=True) as gathered:
        dist.all_reduce(tensor, group=group)
        dist.all_reduce(torch.ones(8), group=group)
    gathered.wait()
    # Through the tensor it returns.
    functional.wait_tensor(functional.all_reduce(tensor, "sum", group))
    # Much later, all together.
    kept.append(dist.all_reduce(torch.ones(8), async_op=True))
    # Nobody needs the result of a sender, or of a barrier.
    dist.broadcast(tensor, src=0, async_op=True).wait()
    dist.barrier(async_op=True)
for work in kept:
    work.wait()

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
for step in range(6):
# end
    model(torch.ones(8, 256)).sum().backward()
# if FAULTY
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, async_op=True)  # HERE rank 0 1
    time.sleep(0.05)
    optimizer.step()
dist.barrier()
# else
# The last one is nobody's any more.
dist.all_reduce(tensor, async_op=True)
# end
dist.destroy_process_group()
