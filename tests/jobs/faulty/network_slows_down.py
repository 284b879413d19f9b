# /// truth
# nproc = 2
# code = "DD604"
# root = []
# says = "communication is slow"
# seconds = 32
# ///
"""After ten seconds the network between the ranks is slow: the kernel sends no more than 20 MB a second on each of their
connections. On a machine so busy that their threads wait for processors, nobody could tell it from that."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parent.parent / "support"))

from slow_network import busy, kept_from_running, slow_down  # noqa: E402

dist.init_process_group("gloo")
rank = dist.get_rank()
gradients = torch.ones(1 << 20)
begin = time.monotonic()
state = torch.zeros(1)
kept = []
while state.item() < 30:
    time.sleep(0.05)
    dist.all_reduce(gradients)  # HERE rank 0 1
    gradients /= 2
    if state.item() > 10:
        if not kept:
            slow_down()
        kept.append((time.monotonic(), kept_from_running()))
    # All go by one clock.
    state[0] = time.monotonic() - begin
    dist.broadcast(state, 0)
share = torch.tensor([busy(kept)])
dist.all_reduce(share)
if rank == 0 and share.item() > 0.2:
    print(f"SKIPPED: threads of the ranks were kept from running for {share.item():.0%} of the time")
dist.destroy_process_group()
