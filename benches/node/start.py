"""Cost of starting: the program, a job under `ddp-doctor run`, and each interpreter in it; and the size of the program.

    python benches/node/start.py
    python benches/node/start.py --pairs 300

Two ways to start one thing alternate. Differences are those of pairs, with their medians and 95 % intervals: they
depend less on other programs than the times. Needs the release build.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import PACKAGE, built, interval, machine  # noqa: E402


def milliseconds(command, environment=None):
    """How long a command takes."""
    begin = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - begin) * 1000


def compare(what, pairs, one, other):
    """Prints what the other start takes more than the one."""
    times = [(one(), other()) for _ in range(pairs)]
    without, with_it = (interval([pair[side] for pair in times])[0] for side in (0, 1))
    more, low, high = interval([after - before for before, after in times])
    print("%-32s %7.1f ms, %7.1f ms: %+.1f ms (95 %%: %+.1f to %+.1f)" % (what, without, with_it, more, low, high), flush=True)


def interpreters(pairs, before):
    """Starts interpreters within a job: with the environment that was there before, and with that of the job."""
    command = [sys.executable, "-c", "pass"]
    compare("an interpreter", pairs, lambda: milliseconds(command, before), lambda: milliseconds(command))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--program", help="the program; default: the release build")
    parser.add_argument("--quick", action="store_true", help="a smoke test without meaningful results")
    parser.add_argument("--before", help=argparse.SUPPRESS)
    options = parser.parse_args()
    pairs = 2 if options.quick else options.pairs
    if options.before:
        return interpreters(pairs, json.loads(options.before))
    print(machine())
    program = options.program or built("ddp-doctor")
    with tempfile.TemporaryDirectory() as folder:
        bare = os.path.join(folder, "program")
        shutil.copy(program, bare)
        subprocess.run(["strip", "--strip-unneeded", bare], check=True)
        print("%-32s %7.1f MiB without symbols" % ("the program", os.path.getsize(bare) / 2**20), flush=True)
        os.chdir(folder)
        run = [program, "run", "-qq", "--"]
        true = [shutil.which("true")]
        compare("`true`, `ddp-doctor --help`", pairs, lambda: milliseconds(true), lambda: milliseconds([program, "--help"]))
        compare("`true`, `ddp-doctor run -- true`", pairs, lambda: milliseconds(true), lambda: milliseconds(run + true))
        inner = [sys.executable, os.path.abspath(__file__), "--pairs", str(pairs), "--before", json.dumps(dict(os.environ))]
        subprocess.run(run + inner, check=True, env=dict(os.environ, DDP_DOCTOR_PYTHON=PACKAGE))


if __name__ == "__main__":
    main()
