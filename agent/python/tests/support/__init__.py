"""Runs programs with capture enabled and reads their black boxes."""

import atexit
import functools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

from .boxreader import boxes

SUPPORT = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(os.path.dirname(SUPPORT))
ACTIVATE = os.path.join(PACKAGE, "ddp_doctor", "activate")


def library():
    named = os.environ.get("DDP_DOCTOR_LIBRARY")
    if named:
        return named
    root = os.path.dirname(os.path.dirname(PACKAGE))
    for profile in ("release", "debug"):
        file = os.path.join(root, "target", profile, "libddp_doctor.so")
        if os.path.exists(file):
            return file
    raise RuntimeError("build the library first: cargo build --release -p ddp-doctor-capi")


def free_port():
    # Below the ephemeral range, in which the kernel might assign the port to another connection meanwhile.
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
                return port
            except OSError:
                pass


def environment(folder=None, **changes):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DDP_DOCTOR", "TORCH", "PYTHON"))}
    env.update(
        PYTHONPATH=ACTIVATE, DDP_DOCTOR_JOB="test", DDP_DOCTOR_LIBRARY=library(), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1"
    )
    if folder:
        env.update(DDP_DOCTOR_BOX_DIR=os.path.join(folder, "boxes"), DDP_DOCTOR_RUN_DIR=folder)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


class Outcome:
    def __init__(self, statuses, outputs, found, file):
        self.statuses, self.outputs, self.boxes, self.file = statuses, outputs, found, file

    @property
    def box(self):
        assert len(self.boxes) == 1, (self.boxes, self.outputs)
        return self.boxes[0]

    def line(self, marker):
        """Number of the line that ends in `# marker`."""
        with open(self.file) as source:
            for number, line in enumerate(source, 1):
                if line.rstrip().endswith("# " + marker):
                    return number
        raise AssertionError(marker)


def python(code, arguments=(), env=None, cwd=None, timeout=120):
    """Runs code in a new interpreter with `-c`."""
    return subprocess.run(
        [sys.executable, *arguments, "-c", textwrap.dedent(code)],
        env=env or environment(),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=timeout,
    )


# An exit beside threads of Gloo that still release tensors may abort the process.
END = """
import torch.distributed
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


def job(code, ranks=1, timeout=120, forked=True, destroys=True, **changes):
    """Runs a program once per rank and reads its black boxes.

    Programs that depend on the outermost frame or on the start of the interpreter need `forked=False`.
    With `destroys`, the process groups are destroyed at the end of the program.
    """
    folder = tempfile.mkdtemp(prefix="ddp-doctor-test-")
    try:
        os.mkdir(os.path.join(folder, "boxes"))
        file = os.path.join(folder, "train.py")
        with open(file, "w") as program:
            program.write(textwrap.dedent(code) + (END if destroys else ""))
        port = str(free_port())
        environments = [
            environment(
                folder,
                **{
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    **changes,
                },
            )
            for rank in range(ranks)
        ]
        # Other variables may affect the import of PyTorch, which the fork server has done already.
        forked = forked and changes.keys() <= {"DDP_DOCTOR_CAPTURE", "DDP_DOCTOR_NATIVE_HOOKS"}
        run = _run_forked if forked else _run
        statuses, outputs = run(file, folder, environments, timeout)
        kept = os.path.join(tempfile.gettempdir(), os.path.basename(folder) + ".py")
        shutil.copy(file, kept)
        return Outcome(statuses, outputs, boxes(os.path.join(folder, "boxes")), kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(file, folder, environments, timeout):
    """Runs each rank in a new interpreter."""
    processes = [
        subprocess.Popen(
            [sys.executable, file],
            env=env,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        )
        for env in environments
    ]
    outputs = []
    for process in processes:
        try:
            outputs.append(process.communicate(timeout=timeout)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            outputs.append(process.communicate()[0] + "\n(timed out)")
    return [process.returncode for process in processes], outputs


@functools.cache
def _forkserver(capture):
    """The fork server for this value of DDP_DOCTOR_CAPTURE, which the import of PyTorch depends on."""
    server = subprocess.Popen(
        [sys.executable, os.path.join(SUPPORT, "forkserver.py")],
        env=environment(DDP_DOCTOR_CAPTURE=capture),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        universal_newlines=True,
    )
    atexit.register(server.wait)
    atexit.register(server.stdin.close)
    return server


def _run_forked(file, folder, environments, timeout):
    """Runs each rank in a fork of an interpreter with PyTorch imported, which is ten times cheaper."""
    server = _forkserver(environments[0].get("DDP_DOCTOR_CAPTURE"))
    outputs = [os.path.join(folder, f"output.{rank}") for rank in range(len(environments))]
    ranks = [{"env": env, "output": output} for env, output in zip(environments, outputs)]
    request = {"file": file, "folder": folder, "ranks": ranks, "timeout": timeout}
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    statuses = json.loads(server.stdout.readline())

    def text(rank):
        with open(outputs[rank], errors="replace") as output:
            return output.read() + ("" if statuses[rank] is not None else "\n(timed out)")

    return statuses, [text(rank) for rank in range(len(ranks))]


HEAD = """
import os, sys, threading, time, _thread
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
"""


class CaptureTest(unittest.TestCase):
    """Runs code after the initialization of a Gloo group, on one rank or several."""

    maxDiff = None

    def run_job(self, code, ranks=1, statuses=None, **changes):
        outcome = job(HEAD + code, ranks, **changes)
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, statuses or [0] * ranks, "\n".join(outcome.outputs))
        self.assertEqual(len(outcome.boxes), ranks, outcome.outputs)
        return outcome

    def issued(self, box, *ops):
        return [r for r in box.of("issued") if not ops or r.op in ops]
