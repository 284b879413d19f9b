"""Measures the time from the deciding call to the finding in the report file of `ddp-doctor run`.

Every faulty program of tests/jobs that stamps its deciding call runs several times under
`ddp-doctor run --report`. The file is read every 2 ms until it has the finding of the planted fault.
The report's own latency, from the last event that a finding needs to its detection, is printed for
comparison.

    python benches/analysis/latency.py                 # five runs each
    python benches/analysis/latency.py --runs 20 op_mismatch killed

Needs PyTorch >= 2.14 and the release build.
"""

import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import ROOT, built, machine  # noqa: E402

JOBS = os.path.join(ROOT, "tests", "jobs")
TIMEOUT = 90  # seconds


def truth(program):
    """The TOML table at the head of a program, merged with its table `faulty`."""
    import tomllib

    with open(program) as file:
        lines = file.read().splitlines()
    begin = lines.index("# /// truth") + 1
    facts = tomllib.loads("\n".join(line[2:] for line in lines[begin : lines.index("# ///")]))
    return {**facts, **facts.pop("faulty")}


def run(program, facts):
    """Runs a program; returns both latencies in ms and the code, or None if nothing was found."""
    with tempfile.TemporaryDirectory() as scratch:
        report, stamp = os.path.join(scratch, "report.json"), os.path.join(scratch, "stamp")
        command = [built("ddp-doctor"), "run", "-q", "--run-dir", "run", "--report", report]
        command += ["--on-hang", "kill", "--kill-after", "1"] + facts.get("run_options", [])
        command += ["--nproc-per-node", str(facts["nproc"]), program]
        path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        environment = dict(os.environ, PATH=path, OMP_NUM_THREADS="1", DDP_DOCTOR_TEST_STAMP=stamp)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, cwd=scratch, env=environment, **quiet)
        deadline = time.monotonic() + TIMEOUT
        found, seen, version = None, None, None
        while found is None and time.monotonic() < deadline:
            over = process.poll() is not None
            try:
                status = os.stat(report)
                if (status.st_ino, status.st_mtime_ns) != version:
                    version = (status.st_ino, status.st_mtime_ns)
                    with open(report) as file:
                        findings = json.load(file)["findings"]
                    now = time.time_ns()
                    codes = (facts["code"], facts.get("or_code"))
                    found = next((f for f in findings if f["code"] in codes), None)
                    seen = now
            except OSError:
                pass
            if over:
                break
            time.sleep(0.002)
        process.terminate()
        process.wait()
        if found is None:
            return None
        stamps = [int(open(name).read()) for name in glob.glob(stamp + ".*")]
        return (seen - max(stamps)) / 1e6, found["latency_ms"], found["code"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run each")
    parser.add_argument("jobs", nargs="*")
    options = parser.parse_args()
    runs = 1 if options.quick else options.runs
    print(machine())
    print("%-34s %-6s %28s %28s" % ("", "", "stamp to report file (ms)", "own account (ms)"))
    outside = []
    variants = tempfile.TemporaryDirectory()
    subprocess.run([sys.executable, os.path.join(JOBS, "variants.py"), variants.name], check=True)
    for program in sorted(glob.glob(os.path.join(variants.name, "faulty", "*.py"))):
        name = os.path.basename(program)[:-3]
        facts = truth(program)
        if (options.jobs and name not in options.jobs) or "decisive" not in facts or facts.get("launcher") == "python":
            continue
        measured = [one for one in (run(program, facts) for _ in range(runs)) if one]
        if not measured:
            print("%-34s %-6s not found in %d runs" % (name, facts["code"], runs))
            continue
        cells = []
        for column in (0, 1):
            values = sorted(one[column] for one in measured)
            cells.append("%8.0f (%.0f to %.0f)" % (statistics.median(values), values[0], values[-1]))
        if "--stall-after" not in facts.get("run_options", []):
            outside += [one[0] for one in measured]
        missed = "" if len(measured) == runs else "   found in %d of %d runs" % (len(measured), runs)
        print("%-34s %-6s %28s %28s%s" % (name, measured[0][2], cells[0], cells[1], missed), flush=True)
    if outside:
        outside.sort()
        at = lambda part: outside[min(len(outside) - 1, int(part * len(outside)))]  # noqa: E731
        figures = (len(outside), at(0.5), at(0.95), at(0.99), outside[-1])
        print("without the stall limit: %d runs, median %.0f ms, 95 %% %.0f ms, 99 %% %.0f ms, most %.0f ms" % figures)


if __name__ == "__main__":
    main()
