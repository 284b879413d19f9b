"""Measures what the preloaded library for NCCL calls costs a process that makes none.

Programs are started with and without the library, alternating; the result is the difference of the times
from start to exit.

    python benches/nccl/preload.py [--pairs 300]

Needs the release build.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import built, interval, machine  # noqa: E402

PROGRAMS = [("true",), ("bash", "-c", ":"), (sys.executable, "-S", "-c", "pass")]


def start(command, environment):
    begin = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - begin
    if status:
        sys.exit("%s: status %d" % (" ".join(command), status))
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="few pairs: a smoke test without meaningful results")
    options = parser.parse_args()
    if options.quick:
        options.pairs = 20
    print(machine())
    library = built("libddp_doctor_nccl.so")
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    loaded = dict(plain, LD_PRELOAD=library)
    maps = subprocess.run(["cat", "/proc/self/maps"], env=loaded, check=True, capture_output=True, text=True).stdout
    if library not in maps:
        sys.exit("%s is not preloaded" % library)
    chance = random.Random(0)
    for program in PROGRAMS:
        command = [shutil.which(program[0])] + list(program[1:])
        pairs = []
        for _ in range(options.pairs + 5):
            took = {}
            for kind in chance.sample(("plain", "loaded"), 2):
                took[kind] = start(command, plain if kind == "plain" else loaded)
            pairs.append(took)
        pairs = pairs[5:]
        without = statistics.median(pair["plain"] for pair in pairs) * 1e3
        added = interval([(pair["loaded"] - pair["plain"]) * 1e3 for pair in pairs])
        ratio = interval([pair["loaded"] / pair["plain"] for pair in pairs])
        print(
            "    %-12s %7.2f ms without: adds %+.3f ms (95 %%: %+.3f to %+.3f), ratio %.3f (%.3f to %.3f)"
            % ((os.path.basename(program[0]), without) + added + ratio)
        )


if __name__ == "__main__":
    main()
