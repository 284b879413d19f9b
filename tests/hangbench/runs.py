"""Runs programs: each in a folder of its own, with a time limit, and without leaving processes behind."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from programs import JOBS

HERE = pathlib.Path(__file__).resolve().parent
MARK = "HANGBENCH_RUN"
# Seconds that a job gets to end after SIGTERM; the launchers need ten to kill a stopped rank.
GRACE = 15


@dataclasses.dataclass
class Run:
    """A finished run. `status` is None if the benchmark ended the job at its time limit."""

    folder: pathlib.Path
    case: object
    status: int | None
    ended_ns: int
    seconds: float
    skipped: str | None = None

    def decisive_ns(self):
        """The latest stamp of a decisive call, or None if the program writes none."""
        stamps = [file.read_text().strip() for file in self.folder.glob("stamp.*")]
        return max((int(stamp) for stamp in stamps if stamp), default=None)

    def output(self):
        return (self.folder / "output").read_text(errors="replace")

    def ranks(self):
        """The output of each rank, by rank: that of its last attempt under torchrun."""
        found = {}
        for file in sorted(self.folder.glob("rank.*")):
            found[int(file.suffix[1:])] = file.read_text(errors="replace")
        for file in sorted(self.folder.glob("torchrun/*/attempt_*/*/std*.log")):
            attempt, rank = int(file.parts[-3].split("_")[1]), int(file.parts[-2])
            last = max(int(it.name.split("_")[1]) for it in file.parents[2].glob("attempt_*"))
            if attempt == last:
                found[rank] = found.get(rank, "") + file.read_text(errors="replace")
        return found

    def ends(self):
        """Rank, exit status and time in ns of the ranks that ended, in this order; the launcher writes them."""
        try:
            lines = (self.folder / "ends").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [tuple(int(word) for word in line.split()) for line in lines if not line.startswith("None")]


def plain_command(case, folder, variants):
    """The command that starts a program without ddp-doctor; the output of each rank goes to a file."""
    program, ranks = case.program(variants), str(case.truth["nproc"])
    match case.truth.get("launcher", "fork"):
        case "fork":
            return ["python", str(JOBS / "support" / "launch.py"), ranks, *program]
        case "python":
            return ["python", *program]
        case _:
            logs = ["--redirects", "3", "--log-dir", str(folder / "torchrun")]
            return ["torchrun", "--nproc-per-node", ranks, *logs, *program]


def doctor_command(case, folder, variants, binary):
    """The command of the project's own live tests (tests/truth/live.rs)."""
    truth, program = case.truth, case.program(variants)
    ranks = str(truth["nproc"])
    kill_after = truth.get("kill_after") or ("1" if truth.get("hang") else "60")
    command = [str(binary), "run", "--run-dir", str(folder / "run"), "--report", str(folder / "report.json")]
    command += ["--on-hang", "kill", "--kill-after", kill_after, *truth.get("run_options", [])]
    match truth.get("launcher", "fork"):
        case "fork":
            return [*command, "--", "python", str(JOBS / "support" / "launch.py"), ranks, *program]
        case "python":
            return [*command, "--", "python", *program]
        case _:
            return [*command, "--nproc-per-node", ranks, *program]


def environment(case, folder, added):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DDP_DOCTOR", "HANGBENCH"))}
    kept["PATH"] = os.path.dirname(sys.executable) + os.pathsep + kept.get("PATH", "")
    kept.update(OMP_NUM_THREADS="1", DDP_DOCTOR_TEST_STAMP=str(folder / "stamp"))
    kept.update(case.truth.get("environment", {}))
    kept.update({key: value.format(folder=folder) for key, value in added.items()})
    kept[MARK] = str(folder)
    return kept


def execute(case, command, added, folder, limit):
    """Runs a command to its end, or to the limit in seconds, and stores its output and facts in the folder."""
    size = case.truth.get("shared_memory")
    if size:
        mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$0" "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, *command]
    began, status = time.monotonic(), None
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(case, folder, added), stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    ended = time.time_ns()
    kill_rest(folder)
    run = Run(folder, case, status, ended, round(time.monotonic() - began, 3))
    run.skipped = skipped(run)
    facts = {key: getattr(run, key) for key in ("status", "ended_ns", "seconds", "skipped")}
    (folder / "facts.json").write_text(json.dumps(facts))
    return run


def skipped(run):
    """What the program says if it cannot run on this machine."""
    for text in [run.output(), *run.ranks().values()]:
        if "SKIPPED: " in text:
            return text.split("SKIPPED: ", 1)[1].splitlines()[0]
    return None


def kill_rest(folder):
    """Kills the processes of a run that outlived its launcher; they carry its folder in their environment."""
    mark = f"{MARK}={folder}\0".encode()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes() + b"\0":
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass


def fresh_folder(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def stored(folder, case):
    """The run in this folder."""
    return Run(folder, case, **json.loads((folder / "facts.json").read_text()))
