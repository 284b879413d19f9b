# /// truth
# nproc = 2
# alone = true
# seconds = 16
#
# [faulty]
# code = "DD605"
# verdict = "slow"
# root_confidence = "supported"
# says = "of the time is spent in small all_reduce calls: 80 per round, of 1.8 KiB on average, half of them at most 288 B"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""The program averages its gradients by itself, one all_reduce for each of 80 small parameters.

Healthy: The program averages its gradients by itself, all of them in one bucket, and reduces a few metrics in each step.
"""

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
# if HEALTHY
metrics = {name: torch.zeros(1) for name in ("loss", "accuracy", "norm", "tokens")}
# end
while going.item():
    optimizer.zero_grad()
    model(torch.randn(8, 8)).sum().backward()
    # if FAULTY
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # HERE rank 0 1
        parameter.grad /= dist.get_world_size()
    # else
    gradients = [parameter.grad for parameter in model.parameters()]
    bucket = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    for gradient, part in zip(gradients, bucket.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(part.view_as(gradient))
    # end
    optimizer.step()
    # if HEALTHY
    for metric in metrics.values():
        dist.all_reduce(metric)
    # end
    step += 1
    # All stop in the same step.
    going[0] = step < 40 or time.monotonic() < begin + 14
    dist.broadcast(going, 0)
dist.destroy_process_group()
