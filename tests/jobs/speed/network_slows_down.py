# /// truth
# nproc = 2
# alone = true
# seconds = 32
#
# [faulty]
# code = "DD604"
# ranks = { root = [] }
# says = "communication is slow"
#
# [healthy]
# ///
"""After ten seconds the network between the ranks is slow: the kernel sends no more than 20 MB a second on each of their
connections. On a machine so busy that their threads wait for processors, nobody could tell it from that.

Healthy: After ten seconds the host is busy: as many programs as it has processors compute beside the ranks, and everything
takes longer, collectives too. The network is as it was.
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from support.slow_network import busy, kept_from_running, slow_down

dist.init_process_group("gloo")
rank = dist.get_rank()
gradients = torch.ones(1 << 20)
begin = time.monotonic()
state = torch.zeros(1)
# if FAULTY
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
# else
hogs = []
try:
    while state.item() < 30:
        time.sleep(0.05)
        dist.all_reduce(gradients)
        gradients /= 2
        if state.item() > 10 and rank == 0 and not hogs:
            command = [sys.executable, "-ISc", "while True: pass"]
            hogs = [subprocess.Popen(command) for _ in range(os.cpu_count())]
        # All go by one clock.
        state[0] = time.monotonic() - begin
        dist.broadcast(state, 0)
finally:
    for hog in hogs:
        hog.kill()
        hog.wait()
# end
dist.destroy_process_group()
