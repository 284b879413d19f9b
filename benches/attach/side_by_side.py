"""What `py-spy dump` on every rank and `ddp-doctor attach` give for the programs of tests/attach/jobs.

    python benches/attach/side_by_side.py --py-spy PATH [--ddp-doctor PATH] [--wait SECONDS] [NAME...]

Each program is started without ddp-doctor, and read once it has had time to hang. The table states for each tool how
long it took, how many lines it printed, and on how many of the marked ranks (`HERE rank N`) the output has the line.
Needs Python with PyTorch on PATH.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOBS = ROOT / "tests/attach/jobs"
LIMIT = 30  # seconds for a tool and one process


def truth_of(text):
    return tomllib.loads(text.split("/// truth")[1].split("///")[0])


def marks_of(text):
    """The marked lines of each rank."""
    marks = {}
    for number, line in enumerate(text.splitlines(), 1):
        for rank in (line.split("# HERE rank ") + [""])[1].split():
            marks.setdefault(int(rank), set()).add(number)
    return marks


def start(program, truth, folder):
    environment = dict(os.environ, JOB_DIR=str(folder), OMP_NUM_THREADS="1")
    if truth.get("spawns"):
        command = [sys.executable, program]
    elif truth.get("plain"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        size = str(truth["nproc"])
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
        script = f'for r in $(seq 0 $(({size} - 1))); do RANK=$r LOCAL_RANK=$r python "$0" & done; wait'
        command = ["bash", "-c", script, program]
    else:
        command = [sys.executable, ROOT / "tests/jobs/support/launch.py", str(truth["nproc"]), program]
    output = open(folder / "output", "w")
    return subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
                            stderr=output, start_new_session=True)


def children(pid):
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return sorted(found)


def py_spy(tool, ranks, marks, name):
    """Ranks are started in order, so that the n-th process is rank n, except where one has ended."""
    began = time.monotonic()
    texts = []
    for pid in ranks:
        try:
            done = subprocess.run([tool, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=LIMIT)
            texts.append(done.stdout if done.returncode == 0 else "")
        except subprocess.TimeoutExpired:
            texts.append("")
    took = time.monotonic() - began
    places = [set(map(int, re.findall(rf"{name}\.py:(\d+)", text))) for text in texts]
    lines = sum(1 for rank, at in marks.items() if any(at & place for place in places))
    return dict(seconds=round(took, 2), printed=sum(text.count("\n") for text in texts), lines=lines,
                unread=texts.count(""))


def attach(tool, ranks, marks, truth):
    began = time.monotonic()
    done = subprocess.run([tool, "attach", "--format", "json", *map(str, ranks)], capture_output=True, text=True,
                          timeout=60)
    took = time.monotonic() - began
    text = subprocess.run([tool, "attach", *map(str, ranks)], capture_output=True, text=True, timeout=60).stdout
    report = json.loads(done.stdout)
    blocking = [it for it in report["findings"] if it["effect"] != "none"]
    where = {it["rank"]: it["where"] for it in report["ranks"]}
    if blocking:
        where.update({it["rank"]: it["where"] for it in blocking[0]["per_rank"] if it["where"]})
    lines = sum(1 for rank, at in marks.items() if (where.get(rank) or {}).get("line") in at)
    code = blocking[0]["code"] if blocking else "-"
    root = blocking[0]["ranks"]["root"] if blocking else []
    on = [it["blocked_on"]["what"] for it in report["ranks"] if it["blocked_on"]]
    is_right = not blocking if truth.get("healthy") else code in truth["codes"] and root == truth["root"]
    return dict(seconds=round(took, 2), printed=text.count("\n"), lines=lines, code=code, root=root,
                right=is_right, on=on)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--py-spy", required=True)
    parser.add_argument("--ddp-doctor", default=ROOT / "target/debug/ddp-doctor")
    parser.add_argument("--wait", type=float, default=45, help="seconds from the start of a job until it is read")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for program in sorted(JOBS.glob("*/*.py")):
        if options.names and program.stem not in options.names:
            continue
        text = program.read_text()
        truth, marks = truth_of(text), marks_of(text)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            job = start(program, truth, folder)
            try:
                time.sleep(options.wait)
                ranks = children(job.pid)
                row = dict(name=program.stem, ranks=len(ranks), marks=len(marks))
                # py-spy stops the threads: they have slept for a moment only afterwards.
                row["attach"] = attach(options.ddp_doctor, ranks, marks, truth)
                row["py-spy"] = py_spy(options.py_spy, ranks, marks, program.stem)
                print(json.dumps(row), flush=True)
            finally:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
                subprocess.run(["umount", "--lazy", folder / "data"], stderr=subprocess.DEVNULL)


main()
