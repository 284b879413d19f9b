"""A network between ranks that is slow from a moment on, and whether the machine lets anybody see that."""

import os
import socket
import time

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
