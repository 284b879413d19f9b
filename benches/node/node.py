"""Measures what `ddp-doctor run` costs beside many ranks of one node, and beside ranks with many calls.

    python benches/node/node.py                              # both rows
    python benches/node/node.py --ranks 64 --calls 10        # one row: calls of all ranks together, per second

The ranks are forked by one process, which has imported PyTorch for all of them, and use Gloo. Each makes
its calls in a group of its own, so that two processors suffice for 10 000 calls a second, and one call of
the world in each step of 0.2 s. Processor time and memory are those of the process `ddp-doctor run`, without
the ranks, over the given seconds in the middle of the job, as is the growth of the journal. Records lost are those of the report.
Needs PyTorch and the release build.
"""

import argparse
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import PACKAGE, built, machine  # noqa: E402

ROWS = ((64, 320), (8, 10_000))
STEP = 0.2
TICKS = os.sysconf("SC_CLK_TCK")


def rank(number, ranks, calls, seconds, folder):
    """One rank: paced calls for `seconds`, counted from the moment when the world is complete."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "store"), rank=number, world_size=ranks)
    alone = dist.new_subgroups(1)[0]
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    if number == 0:
        with open(os.path.join(folder, "began"), "w") as file:
            file.write(str(os.getppid()))
    made, begin = 0, time.monotonic()
    for step in range(int(seconds / STEP)):
        due = int(calls / ranks * STEP * (step + 1))
        while made < due:
            dist.all_reduce(tensor, group=alone)
            made += 1
        dist.all_reduce(tensor)
        time.sleep(max(0.0, begin + (step + 1) * STEP - time.monotonic()))
    if number == 0:
        with open(os.path.join(folder, "took"), "w") as file:
            file.write(str(time.monotonic() - begin))
    dist.destroy_process_group()


def launch(options):
    """Forks the ranks and waits for them."""
    import torch.distributed  # noqa: F401  imported once for all ranks

    children = []
    for number in range(options.ranks):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                rank(number, options.ranks, options.calls, options.seconds, options.rank)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))


def used(pid):
    """Processor seconds and resident memory in MiB of a process."""
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    with open("/proc/%d/status" % pid) as file:
        resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
    return (int(fields[11]) + int(fields[12])) / TICKS, resident / 1024


def written(run):
    """Bytes of the journal in a run directory."""
    return sum(os.path.getsize(path) for path in glob.glob(os.path.join(run, "**", "*.ddpj"), recursive=True))


def row(ranks, calls, seconds):
    with tempfile.TemporaryDirectory() as folder:
        report, run = os.path.join(folder, "report.json"), os.path.join(folder, "run")
        # The job is five seconds longer at each end than what is measured.
        arguments = ["--ranks", ranks, "--calls", calls, "--seconds", seconds + 10, "--rank", folder]
        command = [built("ddp-doctor"), "run", "--run-dir", run, "--report", report, "-q", "--"]
        command += [sys.executable, os.path.abspath(__file__)] + [str(argument) for argument in arguments]
        process = subprocess.Popen(command, cwd=folder, env=dict(os.environ, DDP_DOCTOR_PYTHON=PACKAGE))
        try:
            while not os.path.exists(os.path.join(folder, "began")):
                if process.poll() is not None:
                    sys.exit("the job ended with status %d before its world was complete" % process.returncode)
                time.sleep(0.1)
            time.sleep(5)
            before, journal, begin = used(process.pid), written(run), time.monotonic()
            time.sleep(seconds)
            after, journal, wall = used(process.pid), written(run) - journal, time.monotonic() - begin
            status = process.wait()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
        with open(report) as file:
            report = json.load(file)
        with open(os.path.join(folder, "took")) as file:
            took = float(file.read())
    evidence = report["evidence"]
    if not evidence["records"]:
        sys.exit("nothing was captured")
    share = (after[0] - before[0]) / wall
    print(
        "%d ranks, %.0f calls a second made: %.4f of a core (%.4f a rank), %.0f MiB, journal %.0f kB/s, "
        "%d records, %d lost, verdict %s, status %d"
        % (
            ranks,
            (calls + ranks / STEP) * (seconds + 10) / took,
            share,
            share / ranks,
            after[1],
            journal / wall / 1000,
            evidence["records"],
            evidence["records_lost"],
            report["verdict"],
            status,
        ),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--calls", type=int, default=320, help="calls of all ranks together, per second")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="a smoke test without meaningful results")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return launch(options)
    print(machine())
    if options.quick:
        options.ranks, options.seconds = options.ranks or 2, 2
    for ranks, calls in ((options.ranks, options.calls),) if options.ranks else ROWS:
        row(ranks, calls, options.seconds)


if __name__ == "__main__":
    main()
