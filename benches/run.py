"""Runs all benchmarks, or some: `make bench`.

    python benches/run.py                 # all, 30 minutes
    python benches/run.py hooks latency   # some
    python benches/run.py --quick         # checks that they work, without meaningful results

In the folders `capture` and `nccl` are the costs in a rank, in `node` those beside it, in `analysis` and `engine` those
of the diagnosis. The costs of the coordinator are measured by `cargo bench --bench coordinator`.

record         cost of a record for the thread that writes it, through the Rust and the C API
frames         cost of a frame and an update of the dashboard, by the number of ranks
hooks          cost of capture in one collective called from Python, compared with PyTorch's Flight Recorder
job            cost in a step of a real DDP job, and in the memory of its ranks
startup        cost of joining the world, and of each record of a joining rank
parameters     cost of observing a model's parameters, by their number
memory         cost of sampling the memory of a rank from outside
allocator      cost of sampling PyTorch's allocator in a step
shim           cost of the preloaded library in an NCCL call
preload        cost of starting a program that inherits this library and calls no NCCL
lateness       cost of recording why a rank is late
communication  cost of analyzing the durations of collectives, by their number
engine         cost of an event and of an evaluation, by the number of ranks and the length of the job
node           cost of `ddp-doctor run` beside 64 ranks, and beside 10 000 calls a second
devices        cost of sampling GPUs and network ports
start          cost of starting the program, a job under `ddp-doctor run`, and its interpreters
stacks         cost of capturing its stacks for a busy process
journal        cost of analyzing a journal, by the number of its records
dumps          time and memory for analyzing the Flight Recorder dumps of 1 024 ranks
latency        time from the deciding call to the finding, for every planted fault
"""

import argparse
import os
import subprocess
import sys

from common import HERE, ROOT

PARTS = {
    "record": ["cargo", "bench", "--quiet", "--bench", "record"],
    "frames": ["cargo", "bench", "--quiet", "-p", "ddp-doctor-dashboard", "--bench", "frames"],
    "hooks": [sys.executable, os.path.join(HERE, "capture", "hooks.py")],
    "job": [sys.executable, os.path.join(HERE, "capture", "job.py")],
    "startup": [sys.executable, os.path.join(HERE, "capture", "startup.py")],
    "parameters": [sys.executable, os.path.join(HERE, "capture", "parameters.py")],
    "memory": ["cargo", "bench", "--quiet", "--bench", "memory"],
    "allocator": [sys.executable, os.path.join(HERE, "capture", "allocator.py")],
    "shim": [sys.executable, os.path.join(HERE, "nccl", "shim.py")],
    "preload": [sys.executable, os.path.join(HERE, "nccl", "preload.py")],
    "devices": [sys.executable, os.path.join(HERE, "node", "devices.py")],
    "start": [sys.executable, os.path.join(HERE, "node", "start.py")],
    "stacks": [sys.executable, os.path.join(HERE, "node", "stacks.py")],
    "lateness": [sys.executable, os.path.join(HERE, "capture", "lateness.py")],
    "communication": ["cargo", "bench", "--quiet", "--bench", "communication"],
    "engine": ["cargo", "bench", "--quiet", "-p", "ddp-doctor-diagnosis", "--bench", "engine"],
    "node": [sys.executable, os.path.join(HERE, "node", "node.py")],
    "journal": ["cargo", "bench", "--quiet", "--bench", "journal"],
    "dumps": [sys.executable, os.path.join(HERE, "analysis", "dumps.py")],
    "latency": [sys.executable, os.path.join(HERE, "analysis", "latency.py")],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=list(PARTS) + [[]])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    failed = []
    for part in options.parts or PARTS:
        print("== " + part, flush=True)
        quick = ["--quick"] if options.quick and part not in ("record", "frames", "memory", "communication", "engine", "journal") else []
        if subprocess.run(PARTS[part] + quick, cwd=ROOT).returncode:
            failed.append(part)
        print(flush=True)
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
