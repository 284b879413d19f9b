#!/usr/bin/env python3
"""Runs the live jobs of tests/jobs with several versions of PyTorch and prints a table of the results.

    tests/versions.py                                       the default versions
    tests/versions.py --versions 2.4.1 2.8.0 --jobs op_mismatch
    tests/versions.py --versions 2.6.0@python3.9            with another interpreter
    tests/versions.py --write docs/pytorch-versions.md      replaces the table in that file

Each version is one run of `cargo test --test truth live::` with another Python environment, which compares a job's
outcome with the truth at the head of its program. The exit status is 1 if one differs. `scripts/pytorch-env` provides
the environments; `--drop` removes those that did not exist before.
"""

import argparse
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSIONS = ["2.4.1", "2.8.0", "2.15.0"]
BUILD = ["--workspace", "--all-features"]
# These run without PyTorch, with a backend that old versions lack, or in an environment of their own.
OTHERS = ["nccl", "layers", "frameworks", "engines"]
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
RESULT = re.compile(r"^test live::(\S+)\s+\.\.\. (ok|FAILED|ignored.*)$")


def environment_of(version):
    """The folder of the environment, and whether it was there before."""
    script = str(ROOT / "scripts" / "pytorch-env")
    torch, _, python = version.partition("@")
    environment = dict(os.environ, TORCH=torch, PYTHON=python)
    there = subprocess.run([script, "--find"], env=environment, capture_output=True).returncode == 0
    made = subprocess.run([script], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.strip(), there


def run(venv, jobs):
    """Result by job."""
    command = ["cargo", "test", *BUILD, "--test", "truth", "--", "--include-ignored", "live::" + jobs]
    for family in OTHERS:
        command += ["--skip", "live::" + family]
    # Older versions of torchrun use the same port for all jobs, which run beside each other.
    environment = dict(os.environ, DDP_DOCTOR_TEST_VENV=venv, PET_STANDALONE="1")
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    results = {}
    for line in process.stdout:
        print(line, end="", flush=True)
        result = RESULT.match(line)
        if result:
            results[result[1].replace("::", "/")] = "differs" if result[2] == "FAILED" else result[2]
    process.wait()
    return results


def write(file, versions, results):
    """Replaces the table in a file."""
    jobs = sorted({job for of_version in results.values() for job in of_version})
    rows = ["| job | %s |" % " | ".join(versions), "|---|%s" % ("---|" * len(versions))]
    for job in jobs:
        rows.append("| %s | %s |" % (job, " | ".join(results[version].get(job, "") for version in versions)))
    about = "Run on %s: `tests/versions.py --versions %s`.\n\n" % (datetime.date.today(), " ".join(versions))
    table = re.escape(BEGIN) + ".*" + re.escape(END)
    text = re.sub(table, lambda _: BEGIN + about + "\n".join(rows) + "\n" + END, file.read_text(), flags=re.DOTALL)
    file.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=VERSIONS, metavar="VERSION[@PYTHON]")
    parser.add_argument("--jobs", default="", help="beginning of FAMILY::PROGRAM::VARIANT")
    parser.add_argument("--drop", action="store_true", help="remove environments that this made")
    parser.add_argument("--write", metavar="FILE", help="replace the table in this file")
    options = parser.parse_args()
    subprocess.run(["cargo", "build", *BUILD, "--all-targets"], cwd=ROOT, check=True)
    results = {}
    for version in options.versions:
        venv, there = environment_of(version)
        results[version] = run(venv, options.jobs)
        if options.drop and not there:
            shutil.rmtree(venv)
    if options.write:
        write(pathlib.Path(options.write), options.versions, results)
    outcomes = [result for of_version in results.values() for result in of_version.values()]
    wrong = outcomes.count("differs")
    print("%d of %d outcomes differ from the truth" % (wrong, len(outcomes)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
