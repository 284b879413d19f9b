"""How long `ddp-doctor attach` takes for a job of eight ranks that hangs.

    python benches/attach/eight_ranks.py [--ddp-doctor PATH] [--wait SECONDS] [--times N]

Starts tests/attach/jobs/outside/asleep.py without ddp-doctor, and attaches once its ranks have waited for a while.
Prints the time of each attach, its processor time, and the median, and the load of the machine. Needs Python
with PyTorch on PATH.
"""

import argparse
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = 8
EXPECTED = "error[DD204] stuck-outside: rank 1 "


def attach(tool, launcher):
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([tool, "attach", str(launcher)], capture_output=True, text=True)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if EXPECTED not in done.stdout:
        sys.exit(f"not diagnosed:\n{done.stdout}{done.stderr}")
    ran = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{took:.2f} s, {ran:.2f} s of processor time, load {os.getloadavg()[0]:.1f}", flush=True)
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ddp-doctor", default=ROOT / "target/release/ddp-doctor")
    parser.add_argument("--wait", type=float, default=60, help="seconds from the start of the job until it is read")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, ROOT / "tests/jobs/support/launch.py", str(RANKS),
                   ROOT / "tests/attach/jobs/outside/asleep.py"]
        output = open(pathlib.Path(folder, "output"), "w")
        job = subprocess.Popen(command, env=dict(os.environ, JOB_DIR=folder, OMP_NUM_THREADS="1"), cwd=folder,
                               stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        try:
            time.sleep(options.wait)
            times = [attach(options.ddp_doctor, job.pid) for _ in range(options.times)]
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    print(f"median {statistics.median(times):.2f} s, from {min(times):.2f} to {max(times):.2f} s", flush=True)


main()
