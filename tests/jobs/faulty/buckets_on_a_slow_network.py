# /// truth
# nproc = 2
# code = "DD604"
# root = []
# says = "averaging gradients"
# seconds = 32
# ///
"""After 150 steps the network between the ranks is slow: the kernel sends no more than 20 MB a second on each of their
connections. All calls are DDP's own, but for the last. On a machine so busy that their threads wait for processors, nobody could tell
it from that."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parent.parent / "support"))

from slow_network import busy, kept_from_running, slow_down  # noqa: E402

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = [torch.nn.Linear(512, 512) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
kept = []
for step in range(230):
    if step == 150:
        slow_down()
    if step >= 150:
        kept.append((time.monotonic(), kept_from_running()))
    time.sleep(0.05)
    optimizer.zero_grad()
    model(torch.randn(8, 512)).sum().backward()  # HERE rank 0 1
    optimizer.step()
share = torch.tensor([busy(kept)])
dist.all_reduce(share)
if rank == 0 and share.item() > 0.2:
    print(f"SKIPPED: threads of the ranks were kept from running for {share.item():.0%} of the time")
dist.destroy_process_group()
