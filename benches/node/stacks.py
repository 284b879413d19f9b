"""Measures what capturing its stacks costs a process: `ddp-doctor dump --pid` in a loop.

A busy Python process with 30 sleeping threads does equal pieces of work. In alternating turns of a second its
stacks are captured as fast as possible, or not at all. Pieces of neighboring turns are compared by processor
time, which other load hardly affects. In practice a stall is sampled only a few times per hour.

    python benches/node/stacks.py
    python benches/node/stacks.py --pairs 30

Needs the release build, and no PyTorch.
"""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import built, interval, machine  # noqa: E402

WORK = """
import sys, threading, time
never = threading.Event()
for _ in range(30):
    threading.Thread(target=never.wait, daemon=True).start()
def piece():
    return sum(i * i % 7 for i in range(20000))
while True:
    cpu, begin = time.thread_time_ns(), time.monotonic_ns()
    piece()
    end = time.monotonic_ns()
    print(begin, end, time.thread_time_ns() - cpu, flush=True)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    pairs = 3 if options.quick else options.pairs
    program = built("ddp-doctor")

    worker = subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True)
    pieces = []

    def collect():
        pieces.extend(tuple(map(int, line.split())) for line in worker.stdout)

    collector = threading.Thread(target=collect, daemon=True)
    collector.start()
    time.sleep(1)
    turns, captures = [], []
    for turn in range(2 * pairs):
        looking = turn % 2 == 1
        begin = time.monotonic_ns()
        while time.monotonic_ns() - begin < 1_000_000_000:
            if looking:
                start = time.monotonic_ns()
                command = [program, "dump", "--pid", str(worker.pid), "--format", "json"]
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
                captures.append(time.monotonic_ns() - start)
            else:
                time.sleep(0.02)
        turns.append((begin, time.monotonic_ns()))
    worker.kill()
    worker.wait()
    collector.join()

    def cost(turn):
        begin, end = turns[turn]
        return statistics.median(cpu for a, b, cpu in pieces if begin <= a and b <= end)

    ratios = [100 * (cost(2 * i + 1) / cost(2 * i) - 1) for i in range(pairs)]
    percent, low, high = interval(ratios)
    rate = len(captures) / pairs
    print(machine())
    print("one capture, including start and end of the program: %.1f ms (median of %d)" % (statistics.median(captures) / 1e6, len(captures)))
    print("%.0f captures a second cost the process %+.2f %% (95 %%: %+.2f … %+.2f) of its time" % (rate, percent, low, high))
    print("that is %.0f µs a capture (%.0f … %.0f)" % tuple(1e4 * value / rate for value in (percent, low, high)))


if __name__ == "__main__":
    main()
