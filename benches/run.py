"""Every benchmark, one after the other: `make bench`.

    python benches/run.py                 # all, 25 minutes
    python benches/run.py hooks latency   # some
    python benches/run.py --quick         # shows that they work, not what things cost

record   what a record costs the thread that writes it, through Rust and through the C API
frames   what a frame and an update cost the dashboard, by the number of ranks
hooks    what the capture adds to one collective of Python's, beside PyTorch's Flight Recorder
job      what it adds to a step of a real DDP job, and to the memory of its ranks
startup  what it adds to joining the world, and what each thing costs that a rank says then
parameters  what it costs to know of a model's parameters, by their number
memory   what it costs to look at the memory of a rank from outside
allocator   what it costs a step to say what PyTorch's allocator holds
shim     what the library that sees calls of NCCL adds to a call
preload  what it costs to start a program that inherits it and calls no NCCL
lateness what it costs to know why a rank comes late
communication  what a look at what collectives take costs the coordinator, by their number
stacks   what a look at its stacks costs a busy process
latency  from the deciding call to the finding, for every planted fault, seen from outside
"""

import argparse
import os
import subprocess
import sys

from common import HERE, ROOT

PARTS = {
    "record": ["cargo", "bench", "--quiet", "--bench", "record"],
    "frames": ["cargo", "bench", "--quiet", "-p", "ddp-doctor-dashboard", "--bench", "frames"],
    "hooks": [sys.executable, os.path.join(HERE, "hooks.py")],
    "job": [sys.executable, os.path.join(HERE, "job.py")],
    "startup": [sys.executable, os.path.join(HERE, "startup.py")],
    "parameters": [sys.executable, os.path.join(HERE, "parameters.py")],
    "memory": ["cargo", "bench", "--quiet", "--bench", "memory"],
    "allocator": [sys.executable, os.path.join(HERE, "memory.py")],
    "shim": [sys.executable, os.path.join(HERE, "shim.py")],
    "preload": [sys.executable, os.path.join(HERE, "preload.py")],
    "stacks": [sys.executable, os.path.join(HERE, "stacks.py")],
    "lateness": [sys.executable, os.path.join(HERE, "lateness.py")],
    "communication": ["cargo", "bench", "--quiet", "--bench", "communication"],
    "latency": [sys.executable, os.path.join(HERE, "latency.py")],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=list(PARTS) + [[]])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    failed = []
    for part in options.parts or PARTS:
        print("== " + part, flush=True)
        quick = ["--quick"] if options.quick and part not in ("record", "frames", "memory", "communication") else []
        if subprocess.run(PARTS[part] + quick, cwd=ROOT).returncode:
            failed.append(part)
        print(flush=True)
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
