"""Starts the job of `ddp-doctor run` without ddp-doctor, where its program does not start.

A wheel may be installed on a system that its program does not fit: an older C library, another architecture, a file
system without permission to execute. The job must run anyway.
"""

import os
import subprocess
import sys

# Options of `run`, and of all commands, that take a value. A test compares them with those of the program.
WITH_VALUE = frozenset(
    """
    --color --coordinator --digest-above --job --journal-size --kill-after --metrics --metrics-token-file --nccl
    --nproc-per-node --nproc_per_node --on-hang --report --run-dir --source --stacks --stall-after --time-scale
    --token-file --webhook --webhook-heartbeat
    """.split()
)
_PER_NODE = ("--nproc-per-node", "--nproc_per_node")
# What the program keeps from the job, too: ranks often record their environments.
_SECRETS = ("DDP_DOCTOR_TOKEN", "DDP_DOCTOR_METRICS_TOKEN", "DDP_DOCTOR_WEBHOOK")
_SECONDS = 20.0  # a program on a slow network file system still starts in less


def is_asked_for(arguments):
    """Whether the command line starts a job."""
    return bool(_job(arguments))


def why_not(program):
    """Why `program` does not start on this system, in one line; None if it does."""
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "%s did not start within %d s" % (program, _SECONDS)
    except OSError as error:
        return "%s: %s" % (program, error.strerror)
    if done.returncode == 0:
        return None
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return said[0] if said else "%s ended with status %d" % (program, done.returncode)


def start(arguments, reason):
    """Prints `reason`, and executes the job of the command line in this process. Returns if the line has none."""
    job = _job(arguments)
    if not job:
        return
    sys.stderr.write("ddp-doctor: the job runs without ddp-doctor: %s\n" % reason)
    sys.stderr.flush()
    for name in _SECRETS:
        os.environ.pop(name, None)
    try:
        os.execvp(job[0], job)
    except OSError as error:
        sys.stderr.write("ddp-doctor: %s: %s\n" % (job[0], error.strerror))
        # The statuses of a shell.
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _job(arguments):
    """The job's command of a command line `run [OPTIONS] [--] COMMAND…`, or []."""
    words = iter(arguments)
    for word in words:
        if word == "run":
            break
        if not word.startswith("-") or (word in WITH_VALUE and next(words, None) is None):
            return []
    else:
        return []
    count = os.environ.get("DDP_DOCTOR_NPROC_PER_NODE")
    for word in words:
        if word in ("-h", "--help", "-V", "--version"):
            return []
        if word == "--":
            command = list(words)
            break
        if not word.startswith("-"):
            command = [word] + list(words)
            break
        name, is_joined, value = word.partition("=")
        if name in WITH_VALUE and not is_joined:
            value = next(words, "")
        if name in _PER_NODE:
            count = value
    else:
        return []
    if command and count:
        command = ["torchrun", "--nproc-per-node", count] + command
    return command
