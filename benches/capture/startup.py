"""Measures what capture adds to the start of a rank, in a one-rank Gloo world, which waits for no other rank.

The records before a rank joins are measured separately. Joining is measured in pairs: two processes, one of
them with capture, alternate in forming and leaving a world. A real start waits for other ranks, which makes
the share smaller.

    python benches/capture/startup.py
    python benches/capture/startup.py --rounds 20

Needs PyTorch >= 2.14 and the release build.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import PACKAGE, best, built, interval, machine  # noqa: E402

# Number of worlds formed in a turn.
BLOCK = 5
PARAMETERS = (10, 100, 1000, 10000)


def serve(name):
    """Forms worlds on request; prints the mean time per world in ns."""
    if name == "captured":
        sys.path.insert(0, PACKAGE)
        import ddp_doctor

        ddp_doctor.enable()
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        worlds = 0
        for _ in sys.stdin:
            took = 0
            for _ in range(BLOCK):
                worlds += 1
                store = "file://%s/store%d" % (folder, worlds)
                begin = time.perf_counter_ns()
                dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
                took += time.perf_counter_ns() - begin
                dist.destroy_process_group()
            print(took // BLOCK, flush=True)


def paired(rounds, scratch):
    environment = dict(os.environ, DDP_DOCTOR_JOB="bench", DDP_DOCTOR_BOX_DIR=scratch, OMP_NUM_THREADS="1")
    environment["DDP_DOCTOR_LIBRARY"] = built("libddp_doctor.so")
    environment.pop("PYTHONPATH", None)
    processes = {
        name: subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--serve", name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
        )
        for name in ("plain", "captured")
    }

    def turn(name):
        process = processes[name]
        process.stdin.write("\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            sys.exit("a process ended early")
        return json.loads(line) / 1000

    chance = random.Random(0)
    took = {"plain": [], "captured": []}
    for name in took:
        turn(name)  # the first turn loads libraries
    for _ in range(rounds):
        for name in chance.sample(sorted(took), 2):
            took[name].append(turn(name))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    added = [b - a for a, b in zip(took["plain"], took["captured"])]
    ratios = [b / a for a, b in zip(took["plain"], took["captured"])]
    print("joining a world of one rank, without capture: %.0f us" % statistics.median(took["plain"]))
    print("added by the capture:        %+.0f us (95 %%: %+.0f to %+.0f)" % interval(added))
    print("ratio:                       %.3f (95 %%: %.3f to %.3f)" % interval(ratios))


def sources(scratch, repeat):
    """Measures each record of the start separately."""
    os.environ.update(DDP_DOCTOR_JOB="bench", DDP_DOCTOR_BOX_DIR=scratch, OMP_NUM_THREADS="1")
    os.environ["DDP_DOCTOR_LIBRARY"] = built("libddp_doctor.so")
    sys.path.insert(0, PACKAGE)
    import ddp_doctor

    ddp_doctor.enable()
    import torch
    import torch.distributed as dist
    from ddp_doctor._c10d import _init
    from ddp_doctor._ddp import _uses

    dist.init_process_group("gloo", init_method="file://" + scratch + "/store", rank=0, world_size=1)

    def say():
        _init.record(0, 1, "gloo", "env://", None)

    def add_variables():
        os.environ.update(("NCCL_BENCH_%d" % n, str(n)) for n in range(20))

    rows = [
        ("where it joins, versions, settings", say, None),
        ("the same with 20 variables of NCCL's", say, add_variables),
        ("interfaces, where one is named", _init._interfaces, None),
        ("versions of Python and PyTorch", _init._record_versions, None),
    ]
    number = 200 if repeat > 1 else 5
    for name, call, prepare in rows:
        if prepare is not None:
            prepare()
        print("%-48s %8.1f us" % (name, best(call, number, repeat)))

    print("\nsearch for the uses of a part of the model without gradients:")
    for total in PARAMETERS:

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(total // 2)))
                self.head = torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(total // 2)))

            def forward(self, inputs, with_head=False):
                hidden = self.body(inputs)
                return self.head(hidden) if with_head else hidden

        model = Model()
        names = [name for name, _ in model.named_parameters()]
        without = [name for name in names if name.startswith("head.")]

        def look():
            return [_uses.lines(model, part) for part in _uses.parts(names, without)]

        assert len(look()) == 1 and len(look()[0]) == 1
        print("%8d parameters %38.2f ms" % (total, best(look, 3, repeat) / 1000))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="few rounds: a smoke test without meaningful results")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        paired(5 if options.quick else options.rounds, scratch)
        print()
        sources(scratch, 1 if options.quick else 7)


if __name__ == "__main__":
    main()
