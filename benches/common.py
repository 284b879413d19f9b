"""Helpers shared by the benchmarks: paths, a description of the machine, confidence intervals, durations of calls."""

import os
import platform
import random
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PACKAGE = os.path.join(ROOT, "agent", "python")


def built(name):
    """Path of a file of the release build; exits if it is missing."""
    file = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", name)
    if not os.path.exists(file):
        sys.exit("%s is missing; build it first: cargo build --release --workspace" % file)
    return file


def machine():
    """The machine and the software versions, in one line."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    try:
        from importlib.metadata import version

        torch = "PyTorch " + version("torch")
    except Exception:
        torch = "no PyTorch"
    return "%s, %d CPUs, %s %s, Python %s, %s, load %.1f" % (
        model,
        os.cpu_count(),
        platform.system(),
        platform.release(),
        platform.python_version(),
        torch,
        os.getloadavg()[0],
    )


def interval(values, statistic=statistics.median, resamples=2000):
    """A statistic of paired values with its 95 % bootstrap percentile interval (Efron 1979)."""
    chance = random.Random(0)
    again = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(resamples))
    return statistic(values), again[int(0.025 * resamples)], again[int(0.975 * resamples)]


def best(call, number, repeat=7):
    """Duration of one call in µs, the best of several rounds."""
    took = []
    for _ in range(repeat):
        begin = time.perf_counter_ns()
        for _ in range(number):
            call()
        took.append((time.perf_counter_ns() - begin) / number / 1000)
    return min(took)
