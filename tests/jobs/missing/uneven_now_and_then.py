# /// truth
# nproc = 3
# seconds = 14
#
# [healthy]
# ///
"""Nobody is slow for good: a first step that compiles on one rank, batches of different lengths, a rank with a
little more to do, gradients that are accumulated, checkpoints on rank 0, and evaluations.
"""

import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
random.seed(rank)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
begin = time.monotonic()
state = torch.zeros(1)
step = 0
while state.item() < 11:
    if step == 0 and rank == 1:
        time.sleep(1.5)
    optimizer.zero_grad()
    for micro_batch in range(2):
        model.require_backward_grad_sync = micro_batch == 1
        loss = model(torch.randn(8, 16)).sum()
        time.sleep(random.uniform(0.01, 0.06) + 0.003 * rank)
        loss.backward()
    optimizer.step()
    step += 1
    if step % 16 == 0 and rank == 0:
        time.sleep(0.4)
    if step % 25 == 0:
        model.eval()
        for _ in range(random.randrange(2, 6)):
            with torch.no_grad():
                model.module(torch.randn(8, 16))
            time.sleep(0.05)
        model.train()
    # All go by one clock.
    state[0] = time.monotonic() - begin
    dist.broadcast(state, 0)
dist.destroy_process_group()
