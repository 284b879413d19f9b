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

import os
import socket
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SO_MAX_PACING_RATE = 47


def connections():
    """Descriptors of this process that are sockets."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield int(name)
        except OSError:
            pass


def slow_down():
    """Limits what is sent on all of them."""
    for number in connections():
        with socket.socket(fileno=os.dup(number)) as connection:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 20_000_000)


def kept_from_running():
    """Seconds that the threads of this process have waited for a processor, and those that a hypervisor has kept each
    processor from all of them."""
    nanoseconds = 0
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                nanoseconds += int(file.read().split()[1])
        except OSError:
            pass
    with open("/proc/stat") as file:
        stolen = int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK") / os.cpu_count()
    return nanoseconds / 1e9 + stolen


def busy(kept):
    """The share of the time in which it was kept, in all of it and in the last eight seconds: the larger one."""
    end, now = time.monotonic(), kept_from_running()
    late = next((it for it in kept if it[0] > end - 8), kept[0])
    return max((now - before) / (end - begin) for begin, before in (kept[0], late))


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
