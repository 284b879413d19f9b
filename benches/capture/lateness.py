"""Measures what recording the reasons for a late rank costs: its data loader, garbage collection, its host.

Capture times every batch of a data loader and every garbage collection; beside the job, the kernel's counters of
each rank are read once a second. The first two are measured as the added functions around empty calls, the third
as the reading of the files. At the end of each backward pass capture records the time that DDP waited for its
buckets, which is measured in alternating steps of one rank with and without that record.

    python benches/capture/lateness.py

Needs PyTorch >= 2.14 and the library: the release build, or the one named by DDP_DOCTOR_LIBRARY.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import PACKAGE, best, built, machine  # noqa: E402


def nanoseconds(call, number, repeat):
    """Duration of one call in ns, the best of several rounds."""
    return 1000 * best(call, number, repeat)


def buckets(module, step, pairs, number):
    """Durations of a step in ns, (with, without) a record of DDP's wait, from alternating blocks."""
    took = []
    for pair in range(pairs):
        both = [0, 0]
        for hooked in (False, True) if pair % 2 else (True, False):
            # As with a communication hook of the program: nothing is queued.
            module._hooked = hooked
            begin = time.perf_counter_ns()
            for _ in range(number):
                step()
            both[hooked] = (time.perf_counter_ns() - begin) / number
        took.append(both)
    module._hooked = False
    return took


class Nothing:
    """Iterator of a data loader that returns a batch at once."""

    def __next__(self):
        return None


def read(path):
    with open(path) as file:
        return file.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: a smoke test without meaningful results")
    options = parser.parse_args()
    number, repeat = (100, 1) if options.quick else (20_000, 7)
    scratch = tempfile.TemporaryDirectory()
    os.environ.update(DDP_DOCTOR_JOB="bench", DDP_DOCTOR_BOX_DIR=scratch.name, OMP_NUM_THREADS="1")
    if "DDP_DOCTOR_LIBRARY" not in os.environ:
        os.environ["DDP_DOCTOR_LIBRARY"] = built("libddp_doctor.so")
    sys.path.insert(0, PACKAGE)
    import ddp_doctor

    ddp_doctor.enable()
    import torch
    import torch.distributed as dist
    from ddp_doctor import _box, _words
    from ddp_doctor._c10d import _garbage
    from ddp_doctor._ddp import _buckets, _data

    dist.init_process_group("gloo", init_method="file://" + scratch.name + "/store", rank=0, world_size=1)

    class Module:
        class _BaseDataLoaderIter(Nothing):
            __next__ = Nothing.__next__

    bare = nanoseconds(Module._BaseDataLoaderIter().__next__, number, repeat)
    _data.patch(Module, False)
    timed = nanoseconds(Module._BaseDataLoaderIter().__next__, number, repeat)

    def collection():
        _garbage._collects("start", None)
        _garbage._collects("stop", None)

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    inputs = torch.ones(4, 16)

    def step():
        model(inputs).sum().backward()

    def around():
        _buckets.ended(_buckets.begins(), True)

    for _ in range(50):
        step()
    steps = buckets(_buckets, step, 3 if options.quick else 3000, 5)
    more = sorted(written - without for written, without in steps)
    pid = os.getpid()
    files = ["/proc/%d/%s" % (pid, name) for name in ("task/%d/schedstat" % pid, "stat", "status")]
    pressures = ["/proc/pressure/" + name for name in ("cpu", "memory", "io")]
    pressures = [file for file in pressures if os.path.exists(file)]

    def threads():
        folder = "/proc/%d/task/" % pid
        return [read(folder + thread + "/schedstat") for thread in os.listdir(folder)]

    print(machine())
    print("a batch, counted and timed          %7.0f ns, of which the call itself %.0f ns" % (timed, bare))
    print("a record of one that took long      %7.0f ns" % nanoseconds(lambda: _box.lib.spent(_words.INPUT, 1, 0), number, repeat))
    print("a collection of garbage, timed      %7.0f ns" % nanoseconds(collection, number, repeat))
    print("a backward without DDP's buckets    %7.0f ns" % nanoseconds(around, number, repeat))
    print(
        "one with them, timed                %+7.0f ns (quarters: %+.0f to %+.0f) in a step of %.0f µs"
        % (
            statistics.median(more),
            more[len(more) // 4],
            more[len(more) * 3 // 4],
            statistics.median(without for _, without in steps) / 1000,
        )
    )
    print("the kernel's counters of a rank     %7.0f ns" % nanoseconds(lambda: [read(file) for file in files], number // 10, repeat))
    print(
        "… of all of its %3d threads          %7.0f ns"
        % (len(os.listdir("/proc/%d/task" % pid)), nanoseconds(threads, number // 10, repeat))
    )
    print("… of its host's processors          %7.0f ns" % nanoseconds(lambda: read("/proc/stat"), number // 10, repeat))
    print("… pressure, %d files                 %7.0f ns" % (len(pressures), nanoseconds(lambda: [read(file) for file in pressures], number // 10, repeat)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
