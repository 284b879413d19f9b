"""Measures what the preloaded library adds to an NCCL call.

A program in C calls an NCCL whose functions do nothing, with and without the library, alternating. Each run
measures the mean of batches of 2 000 calls, and single calls, including two clock readings. "within" is the
same with a framework's own recorded call around each NCCL call; "alone" is such a call with nothing in it.

    python benches/nccl/shim.py [--pairs 20]

Needs gcc and the release build.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import ROOT, built, interval, machine  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of runs")
    parser.add_argument("--quick", action="store_true", help="few pairs: a smoke test without meaningful results")
    options = parser.parse_args()
    if options.quick:
        options.pairs = 3
    print(machine())
    library = built("libddp_doctor_nccl.so")
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.c")
        nccl, program = os.path.join(scratch, "libnccl.so.2"), os.path.join(scratch, "program")
        compiler = ["gcc", "-O2", "-Wall", "-Wno-missing-prototypes", source]
        subprocess.run(compiler + ["-DLIBRARY", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", nccl], check=True)
        ours = built("libddp_doctor.so")
        header = os.path.join(ROOT, "agent", "capi", "include")
        linked = [nccl, ours, "-Wl,-rpath,%s:%s" % (scratch, os.path.dirname(ours))]
        subprocess.run(compiler + ["-I", header, "-o", program] + linked, check=True)

        def run(watched, *framework):
            boxes = os.path.join(scratch, "boxes")
            os.makedirs(boxes, exist_ok=True)
            environment = {name: value for name, value in os.environ.items() if not name.startswith("DDP_DOCTOR")}
            environment.update(DDP_DOCTOR_BOX_DIR=boxes, DDP_DOCTOR_JOB="bench", DDP_DOCTOR_LIBRARY=ours)
            environment.pop("LD_PRELOAD", None)
            if watched:
                environment["LD_PRELOAD"] = library
            done = subprocess.run([program, *framework], env=environment, check=True, capture_output=True, text=True)
            found = len(os.listdir(boxes))
            if found != (watched or bool(framework)):
                raise SystemExit("%d black boxes" % found)
            for entry in os.scandir(boxes):
                os.unlink(entry.path)
            took = {}
            for line in done.stdout.splitlines():
                name, value = line.split()
                took.setdefault(name, []).append(float(value))
            return took

        runs = []
        for _ in range(options.pairs):
            pair = {}
            for watched in chance.sample((False, True), 2):
                pair[watched] = run(watched)
                pair[watched].update(run(watched, "framework"))
            runs.append(pair)
    for name in ("call", "grouped", "within", "alone"):
        of = lambda pair, watched: statistics.median(pair[watched][name])
        without = statistics.median(of(pair, False) for pair in runs)
        added = interval([of(pair, True) - of(pair, False) for pair in runs])
        print("    %-8s %6.1f ns without, adds %6.1f ns a call (95 %%: %.1f to %.1f)" % ((name, without) + added))
    for watched, word in ((False, "without"), (True, "with")):
        single = sorted(value for pair in runs for value in pair[watched]["single"])
        at = lambda share: single[int(share * (len(single) - 1))]
        print("    single   %-7s median %.0f ns, p99 %.0f ns, p99.9 %.0f ns" % (word, at(0.5), at(0.99), at(0.999)))


if __name__ == "__main__":
    main()
