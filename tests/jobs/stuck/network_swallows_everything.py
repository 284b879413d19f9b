# /// truth
# nproc = 3
#
# [faulty]
# run_options = ["--stall-after", "6"]
# code = "DD116"
# verdict = "hang"
# hang = true
# ranks = { root = [], victims = [0, 1, 2] }
# [healthy]
# run_options = ["--stall-after", "30"]
# ///
"""All ranks enter a collective, and what one of them sends and receives is lost on the way.

Its connections stay open: their descriptors lead to nowhere, as if a switch had swallowed the rest.

Healthy: All ranks enter collectives that take seconds, and complete.
"""

import os
import socket

import select
import torch
import torch.distributed as dist

# if FAULTY
OPEN = "/proc/self/fd"


def descriptors(kind):
    """Descriptors of this process that lead to something of that kind."""
    found = set()
    for name in os.listdir(OPEN):
        try:
            if os.readlink(f"{OPEN}/{name}").startswith(kind):
                found.add(int(name))
        except OSError:
            pass
    return found


def swallow(sockets):
    """Leads descriptors to nowhere. The sockets behind them stay open, and nobody reads or writes them."""
    nowhere = []
    for number in sockets:
        for poller in descriptors("anon_inode:[eventpoll]"):
            try:
                select.epoll.fromfd(os.dup(poller)).unregister(number)
            except OSError:
                pass
        end, other = socket.socketpair()
        end.setblocking(False)
        nowhere += [os.dup(number), end, other]
        os.dup2(end.fileno(), number)
    return nowhere


# end
dist.init_process_group("gloo")
# if FAULTY
rank = dist.get_rank()
tensor = torch.ones(1 << 16)
before = descriptors("socket:")
group = dist.new_group([0, 1, 2])
dist.all_reduce(tensor, group=group)
kept = []
if rank == 1:
    kept = swallow(descriptors("socket:") - before)
dist.all_reduce(tensor, group=group)  # HERE rank 0 1 2
# else
tensor = torch.ones(3 << 24)
work = dist.all_reduce(tensor, async_op=True)
work.wait()
for _ in range(2):
    dist.all_reduce(tensor)
# end
dist.destroy_process_group()
