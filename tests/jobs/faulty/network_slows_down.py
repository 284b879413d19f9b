# /// truth
# nproc = 2
# code = "DD604"
# root = []
# says = "communication is slow"
# seconds = 32
# ///
"""After ten seconds the network between the ranks is slow: the kernel sends no more than 20 MB a second on each of their
connections. On a machine so busy that their threads wait for processors, nobody could tell it from that."""

import os
import socket
import time

import torch
import torch.distributed as dist

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


def queued():
    """Seconds that the threads of this process have waited for a processor."""
    nanoseconds = 0
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                nanoseconds += int(file.read().split()[1])
        except OSError:
            pass
    return nanoseconds / 1e9


dist.init_process_group("gloo")
rank = dist.get_rank()
gradients = torch.ones(1 << 20)
begin = time.monotonic()
state = torch.zeros(1)
slow_since = None
while state.item() < 30:
    time.sleep(0.05)
    dist.all_reduce(gradients)  # HERE rank 0 1
    gradients /= 2
    if state.item() > 10 and slow_since is None:
        slow_since = time.monotonic(), queued()
        slow_down()
    # All go by one clock.
    state[0] = time.monotonic() - begin
    dist.broadcast(state, 0)
busy = torch.tensor([(queued() - slow_since[1]) / (time.monotonic() - slow_since[0])])
dist.all_reduce(busy)
if rank == 0 and busy.item() > 0.2:
    print(f"SKIPPED: threads of the ranks waited {busy.item():.0%} of the time for processors")
dist.destroy_process_group()
