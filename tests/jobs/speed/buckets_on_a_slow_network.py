# /// truth
# nproc = 2
# alone = true
#
# [faulty]
# seconds = 32
# code = "DD604"
# ranks = { root = [] }
# says = "averaging gradients"
#
# [healthy]
# seconds = 55
# ///
"""After 150 steps the network between the ranks is slow: the kernel sends no more than 20 MB a second on each of their
connections. All calls are DDP's own, but for the last. On a machine so busy that their threads wait for processors, nobody could tell
it from that.

Healthy: Everything around DDP's own calls takes longer than at first, ten seconds each: the optimizer, the input, what is left
of the backward behind the last bucket, steps that only accumulate and evaluations. The network is as it was.
"""

import contextlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# if FAULTY
from support.slow_network import busy, kept_from_running, slow_down
# else
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

# end

torch.set_num_threads(1)
dist.init_process_group("gloo")
# if FAULTY
rank = dist.get_rank()
# end
layers = [torch.nn.Linear(512, 512) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
# if FAULTY
kept = []
for step in range(230):
    if step == 150:
        slow_down()
    if step >= 150:
        kept.append((time.monotonic(), kept_from_running()))
    time.sleep(0.05)
# else
for step in range(AT_FIRST + LONG * len(PHASES)):
    phase = PHASES[(step - AT_FIRST) // LONG] if step >= AT_FIRST else None
    Encoder.takes = 0.2 if phase == "behind the last bucket" else 0.0
    time.sleep(0.25 if phase == "input" else 0.05)
# end
    optimizer.zero_grad()
    # if FAULTY
    model(torch.randn(8, 512)).sum().backward()  # HERE rank 0 1
    # else
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
    # end
    optimizer.step()
# if FAULTY
share = torch.tensor([busy(kept)])
dist.all_reduce(share)
if rank == 0 and share.item() > 0.2:
    print(f"SKIPPED: threads of the ranks were kept from running for {share.item():.0%} of the time")
# end
dist.destroy_process_group()
