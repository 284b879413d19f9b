"""A job that averages gradients with DDP until it is ended. It says so after at least 5 s."""

import itertools
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
batch = torch.ones(8, 64)
for step in itertools.count():
    model(batch).sum().backward()
    if step == 250:
        print("computes", flush=True)
    time.sleep(0.02)
