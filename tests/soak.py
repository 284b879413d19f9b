#!/usr/bin/env python3
"""Starts jobs with and without faults for a while, disturbs them and their coordinator, and checks what remains.

    cargo build --workspace --all-features && python3 tests/soak.py --minutes 60

Every job is the C example. Some are started by `ddp-doctor run`, some report by themselves; some are healthy, some hang, some are
killed, and the coordinator is killed, stopped and restarted beside them. As root, another user sends evidence and requests, too.
At the end it prints one line of figures and exits with 1 if a planted hang was not found, a healthy job got a finding or another result
(checksums that its ranks print, exit status) than without ddp-doctor, or a process, a file in shared memory or a descriptor of the
coordinator remained.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "target" / "debug"
PROGRAM = TARGET / "ddp-doctor"
# Planted faults of the example, and the codes that name them.
FAULTS = {"early-exit": {"DD102"}, "barrier": {"DD103"}, "root": {"DD107"}}
# Time limits in seconds: for a hang to be found, and for everything to end.
FOUND, ENDED = 60, 60
NOBODY = 65534


def result(status, stdout):
    """The result of a job. Lines are sorted, since ranks print in any order."""
    return status, sorted(stdout.splitlines())


def wait_until(what, limit):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.2)
    return False


class Soak:
    def __init__(self, folder, seed):
        self.folder = folder
        self.random = random.Random(seed)
        self.counts = collections.Counter()
        self.failures = []
        self.jobs = []
        self.number = 0
        self.mark = "soak-%d" % os.getpid()
        self.training = folder / "training"
        example = ROOT / "agent" / "capi" / "examples" / "training.c"
        subprocess.run(
            ["gcc", "-o", self.training, example, "-I", ROOT / "agent" / "capi" / "include", "-L", TARGET, "-lddp_doctor",
             "-Wl,-rpath,%s" % TARGET], check=True)
        alone = subprocess.run(
            [self.training, "4"], env=dict(self.environment(), DDP_DOCTOR="0"), capture_output=True, text=True, check=True)
        self.result = result(alone.returncode, alone.stdout)
        self.coordinator = None
        self.address = "127.0.0.1:0"
        self.start_coordinator()

    def environment(self, **variables):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DDP_DOCTOR")}
        return dict(kept, SOAK=self.mark, DDP_DOCTOR_PROGRAM=str(PROGRAM), DDP_DOCTOR_TIME_SCALE="0.2", **variables)

    def start_coordinator(self):
        log = open(self.folder / "coordinator.log", "a")
        self.coordinator = subprocess.Popen(
            [PROGRAM, "coordinator", "--listen", self.address, "--report-dir", self.folder / "reports"],
            stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment())
        self.address = self.coordinator.stdout.readline().strip() or self.address

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.coordinator.pid))

    # --- Jobs -------------------------------------------------------------------------------------

    def start_job(self):
        self.number += 1
        name = "%s-%d" % (self.mark, self.number)
        fault = self.random.choice(["", ""] + list(FAULTS))
        bare = self.random.random() < 0.4
        folder = self.folder / name
        folder.mkdir()
        command = [str(self.training), "4", fault]
        environment = self.environment(DDP_DOCTOR_JOB=name)
        uses_coordinator = bare or self.random.random() < 0.5
        if bare:
            environment.update(DDP_DOCTOR_COORDINATOR=self.address, DDP_DOCTOR_RUN_DIR=str(folder / "run"))
        else:
            options = ["--run-dir", str(folder / "run"), "--job", name]
            if uses_coordinator:
                options += ["--coordinator", self.address]
            if fault and self.random.random() < 0.5:
                options += ["--on-hang", "kill", "--kill-after", "1"]
            command = [str(PROGRAM), "run", *options, "--", *command]
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=open(folder / "stdout", "w"),
            stderr=open(folder / "stderr", "w"), start_new_session=True)
        self.counts["jobs"] += 1
        self.counts["jobs without run" if bare else "jobs under run"] += 1
        self.jobs.append({
            "name": name, "fault": fault, "bare": bare, "folder": folder, "process": process, "kills": "--on-hang" in command,
            "started": time.monotonic(), "disturbed": False, "found": not fault})

    def reports(self, job):
        files = [job["folder"] / "run" / "report.json", *(self.folder / "reports").glob(job["name"] + "-2*.json")]
        for file in files:
            try:
                yield json.loads(file.read_text())
            except (OSError, ValueError):
                pass

    def look_at(self, job):
        """Returns whether the job is finished."""
        process, fault = job["process"], job["fault"]
        codes = [{it["code"] for it in report["findings"]} for report in self.reports(job)]
        if fault and any(it & FAULTS[fault] for it in codes) and not job["found"]:
            job["found"] = True
            self.counts["hangs found"] += 1
        if process.poll() is None:
            late = time.monotonic() - job["started"] > FOUND
            if fault and (job["found"] or late) and not job["kills"]:
                if not job["found"] and not job["disturbed"]:
                    self.failures.append("%s: %s was not found" % (job["name"], fault))
                self.end(job, signal.SIGTERM)
            elif late:
                # The other ranks of the example wait for ever for one that was killed.
                if not job["disturbed"]:
                    self.failures.append("%s: still running" % job["name"])
                self.end(job, signal.SIGKILL)
            return False
        if job["disturbed"]:
            return True
        if not fault:
            self.counts["healthy"] += 1
            own = result(process.returncode, (job["folder"] / "stdout").read_text())
            if own != self.result:
                self.failures.append("%s: healthy, result %s instead of %s" % (job["name"], own, self.result))
            bad = [it for it in codes if {c for c in it if not c.startswith("DD9")}]
            if bad:
                self.failures.append("%s: healthy, findings %s" % (job["name"], bad))
        elif not job["found"]:
            # A report without `run` is written a moment after the end.
            job["found"] = wait_until(lambda: self.has_found(job), 15)
            self.counts["hangs found"] += job["found"]
            if not job["found"]:
                self.failures.append("%s: %s was not found" % (job["name"], fault))
        return True

    def has_found(self, job):
        return any({it["code"] for it in report["findings"]} & FAULTS[job["fault"]] for report in self.reports(job))

    def end(self, job, number):
        try:
            os.killpg(job["process"].pid, number)
        except ProcessLookupError:
            pass

    # --- Disturbances -----------------------------------------------------------------------------

    def disturb(self):
        what = self.random.choice(["coordinator", "stop", "job", "run", "rank", "viewer", "user", "user"])
        self.counts["disturbed: " + what] += 1
        getattr(self, "disturb_" + what)()

    def disturb_coordinator(self):
        self.coordinator.send_signal(self.random.choice([signal.SIGKILL, signal.SIGTERM]))
        self.coordinator.wait()
        time.sleep(self.random.random() * 3)
        self.start_coordinator()

    def disturb_stop(self):
        self.coordinator.send_signal(signal.SIGSTOP)
        time.sleep(self.random.random() * 4)
        self.coordinator.send_signal(signal.SIGCONT)

    def some_job(self):
        running = [it for it in self.jobs if it["process"].poll() is None]
        return self.random.choice(running) if running else None

    def disturb_job(self):
        if job := self.some_job():
            job["disturbed"] = True
            self.end(job, signal.SIGKILL)

    def disturb_run(self):
        job = self.some_job()
        if job and not job["bare"]:
            job["disturbed"] = True
            job["process"].kill()
            # The ranks outlive `run`: they are ended as a batch system does it.
            time.sleep(0.5)
            self.end(job, signal.SIGKILL)

    def disturb_rank(self):
        job = self.some_job()
        ranks = [pid for pid in marked(self.mark) if name_of(pid) == "training"]
        if job and ranks:
            for it in self.jobs:
                it["disturbed"] = True
            try:
                os.kill(self.random.choice(ranks), signal.SIGKILL)
            except ProcessLookupError:
                pass

    def disturb_viewer(self):
        for command in (["status"], ["watch", "--once"], ["dump"]):
            subprocess.run(
                [PROGRAM, *command, self.address], env=self.environment(), timeout=60, capture_output=True, cwd=self.folder)

    def disturb_user(self):
        """Another user asks the coordinator, and sends a hang under the name of a job of ours."""
        if os.getuid() != 0:
            return
        folder = self.folder / "other"
        if not folder.exists():
            folder.mkdir()
            shutil.copy(PROGRAM, folder)
            for it in (self.folder, folder, folder / PROGRAM.name):
                os.chmod(it, 0o755)
            (folder / "home").mkdir()
            os.chown(folder / "home", NOBODY, NOBODY)
        job = self.some_job()
        commands = [["status", self.address]]
        if job:
            commands.append(
                ["run", "--job", job["name"], "--coordinator", self.address, "--on-hang", "kill", "--kill-after", "0.1", "--",
                 str(folder / PROGRAM.name), "demo-rank", "op-mismatch"])
        for command in commands:
            answer = subprocess.run(
                ["setpriv", "--reuid=%d" % NOBODY, "--regid=%d" % NOBODY, "--clear-groups", folder / PROGRAM.name, *command],
                env=self.environment(), cwd=folder / "home", timeout=120, capture_output=True, text=True)
            if command[0] == "status" and answer.returncode == 0:
                self.failures.append("another user saw %s" % answer.stdout)

    # --- The end ----------------------------------------------------------------------------------

    def run(self, minutes):
        end = time.monotonic() + minutes * 60
        before = None
        while time.monotonic() < end:
            if len(self.jobs) < 4:
                self.start_job()
            if self.random.random() < 0.3:
                self.disturb()
            self.jobs = [job for job in self.jobs if not self.look_at(job)]
            time.sleep(0.5)
        for job in self.jobs:
            job["disturbed"] = True
            self.end(job, signal.SIGKILL)
        everything_ended = lambda: not [pid for pid in marked(self.mark) if pid != self.coordinator.pid]
        if not wait_until(everything_ended, ENDED):
            left = [(pid, command_of(pid)) for pid in marked(self.mark) if pid != self.coordinator.pid]
            self.failures.append("processes remain: %s" % left)
        self.check_descriptors()
        self.coordinator.terminate()
        if self.coordinator.wait(30) != 0:
            self.failures.append("the coordinator exits with %s" % self.coordinator.returncode)
        own = pathlib.Path("/dev/shm/ddp-doctor-%d" % os.getuid())
        left = [str(it) for it in own.glob(self.mark + "*")] if own.is_dir() else []
        # Boxes of a killed `run` are moved by the next one.
        subprocess.run([PROGRAM, "run", "--", "true"], env=self.environment(), cwd=self.folder, capture_output=True)
        left = [it for it in left if os.path.exists(it) and any(name.endswith(".box") for name in os.listdir(it))]
        self.counts["directories of boxes left"] = len(left)

    def check_descriptors(self):
        """The coordinator has as many descriptors as one that has just started, but for reports and a few of the runtime."""
        first = subprocess.Popen(
            [PROGRAM, "coordinator", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=self.environment())
        first.stdout.readline()
        time.sleep(1)
        fresh = len(os.listdir("/proc/%d/fd" % first.pid))
        first.terminate()
        first.wait()
        wait_until(lambda: self.descriptors() <= fresh + 2, 20)
        self.counts["descriptors more"] = self.descriptors() - fresh
        if self.descriptors() > fresh + 2:
            self.failures.append("the coordinator has %d descriptors, a fresh one %d" % (self.descriptors(), fresh))


def marked(mark):
    """Processes that inherited the mark."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                environment = pathlib.Path("/proc", entry, "environ").read_bytes()
            except OSError:
                continue
            job = b"DDP_DOCTOR_JOB=%s-" % mark.encode()
            if b"SOAK=%s\0" % mark.encode() in environment or job in environment:
                found.append(int(entry))
    return found


def name_of(pid):
    try:
        return pathlib.Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""


def command_of(pid):
    try:
        return pathlib.Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder with all reports")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(folder, options.seed)
    try:
        soak.run(options.minutes)
    finally:
        for pid in marked(soak.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
    print(" · ".join("%s %d" % it for it in soak.counts.items()))
    for failure in soak.failures:
        print(failure, file=sys.stderr)
    if not options.keep and not soak.failures:
        shutil.rmtree(folder)
    else:
        print("reports are in %s" % folder, file=sys.stderr)
    sys.exit(1 if soak.failures else 0)


main()
