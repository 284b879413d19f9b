# /// truth
# nproc = 2
# healthy = true
# seconds = 55
# ///
"""Everything around DDP's own calls takes longer than at first, ten seconds each: the optimizer, the input, what is left
of the backward behind the last bucket, steps that only accumulate and evaluations. The network is as it was."""

import contextlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

AT_FIRST, LONG = 100, 45
PHASES = ["optimizer", "input", "behind the last bucket", "accumulation"]


class Encoder(torch.autograd.Function):
    """Stands before the model, so that its part of the backward comes when all buckets are on their way."""

    takes = 0.0

    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(Encoder.takes)
        return gradient


torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = [torch.nn.Linear(512, 512) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(AT_FIRST + LONG * len(PHASES)):
    phase = PHASES[(step - AT_FIRST) // LONG] if step >= AT_FIRST else None
    Encoder.takes = 0.2 if phase == "behind the last bucket" else 0.0
    time.sleep(0.25 if phase == "input" else 0.05)
    optimizer.zero_grad()
    only_accumulates = phase == "accumulation" and step % 2
    with model.no_sync() if only_accumulates else contextlib.nullcontext():
        inputs = torch.randn(8, 512, requires_grad=True)
        model(Encoder.apply(inputs)).sum().backward()
    if only_accumulates:
        continue
    if phase == "accumulation":
        model.eval()
        with torch.no_grad():
            for _ in range(20):
                model.module(torch.randn(64, 512))
        time.sleep(0.2)
        model.train()
    if phase == "optimizer":
        time.sleep(0.2)
    optimizer.step()
dist.destroy_process_group()
