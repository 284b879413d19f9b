"""One rank whose memory goes as the memory of real programs does: `DDP_DOCTOR_TEST_CURVE=leak torchrun … curves.py`.

What becomes of it is written down by `cargo test --test tests -- --ignored record_curves --nocapture`, in
tests/recorded.
"""

import os
import random
import resource
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

MIB = 1 << 20


def block(mib):
    """Memory that is really there: its pages are written."""
    return torch.ones(int(mib * MIB), dtype=torch.uint8)


def may_take(mib):
    """Lets the address space grow by so much."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def group_of_its_own(mib):
    """A control group that may take so much more than this process has now (version 1, as root)."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    own = "/sys/fs/cgroup/memory/ddp-doctor-curve-%d" % os.getpid()
    os.mkdir(own)
    with open(own + "/memory.limit_in_bytes", "w") as file:
        file.write(str(resident + mib * MIB))
    with open(own + "/memory.force_empty", "w"):
        pass
    with open(own + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


class Leak:
    """8 MiB of every step, until there is no more."""

    steps, pause = 400, 0.2

    def __init__(self):
        may_take(1400)
        self.kept = []

    def step(self, number):
        self.kept.append(block(8))


class UnevenLeak(Leak):
    """Outputs of batches of different sizes are kept, beside what a step needs and gives back."""

    def step(self, number):
        size = random.uniform(2, 14)
        batch = block(4 * size)
        self.kept.append(block(size))
        del batch


class LeakInAGroup(Leak):
    """The same in a control group, where nothing fails: the kernel kills."""

    def __init__(self):
        group_of_its_own(1000)
        self.kept = []


class Sawtooth:
    """Each epoch of 45 steps gathers 8 MiB a step and gives it back. The epoch fits, two would not."""

    steps, pause = 230, 0.15

    def __init__(self):
        may_take(700)
        self.kept = []

    def step(self, number):
        self.kept.append(block(8))
        if number % 45 == 0:
            self.kept.clear()


class WarmUp:
    """Buffers of every shape that comes are kept: many in the beginning, then fewer, then none."""

    steps, pause = 160, 0.2

    def __init__(self):
        may_take(1200)
        self.buffers = {}

    def step(self, number):
        length = min(int(random.expovariate(1 / 12.0)), 40)
        if length not in self.buffers:
            self.buffers[length] = block(8 + length / 2)
        batch = block(random.uniform(1, 8))
        del batch


class Cache:
    """A data set of 70 samples of 10 MiB, drawn at random and kept: it fills by less and less and is full."""

    steps, pause = 260, 0.15

    def __init__(self):
        may_take(1200)
        self.samples = {}

    def step(self, number):
        sample = random.randrange(70)
        if sample not in self.samples:
            self.samples[sample] = block(10)


class OrderedCache:
    """The same read in order: one sample a step, until all are there."""

    steps, pause = 160, 0.2

    def __init__(self):
        self.samples = []

    def step(self, number):
        if len(self.samples) < 60:
            self.samples.append(block(8))


class Fragments:
    """As much is freed as is allocated, in pieces of all sizes among which some live long: malloc gets back what it
    cannot use again, until the holes are as many as the pieces that come."""

    steps, pause = 200, 0.2

    def __init__(self):
        may_take(1600)
        self.short, self.long = [], []

    def step(self, number):
        pieces = [bytearray(b"\1" * random.randrange(8 << 10, 120 << 10)) for _ in range(400)]
        random.shuffle(pieces)
        self.long.extend(bytearray(b"\1" * random.randrange(1 << 10, 16 << 10)) for _ in range(200))
        self.short.append(pieces)
        if len(self.short) > 4:
            self.short.pop(random.randrange(4))
        while len(self.long) > 4000:
            self.long.pop(random.randrange(len(self.long)))


KINDS = {
    "leak": Leak,
    "uneven_leak": UnevenLeak,
    "leak_in_a_group": LeakInAGroup,
    "sawtooth": Sawtooth,
    "warm_up": WarmUp,
    "cache": Cache,
    "ordered_cache": OrderedCache,
    "fragments": Fragments,
}


def main():
    random.seed(7)
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    program = KINDS[os.environ["DDP_DOCTOR_TEST_CURVE"]]()
    for number in range(1, program.steps + 1):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        program.step(number)
        time.sleep(program.pause)
    dist.destroy_process_group()


main()
