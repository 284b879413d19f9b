"""The tools of the benchmark: how a program runs under each, and who reads what it printed."""

import dataclasses
import subprocess
from collections.abc import Callable

import doctor
import flight_recorder
import pytorch
from programs import ROOT
from runs import doctor_command, plain_command


@dataclasses.dataclass
class Tool:
    """A tool; a stranger's is one more entry of `tools`."""

    name: str
    # Title in the table.
    title: str
    # Name of the kind of run. Tools with the same kind share one run of each program.
    kind: str
    # Case, folder, folder of variants: the command.
    command: Callable
    # Environment variables of the run; `{folder}` is its folder.
    environment: dict
    # Run: its `Answer`.
    answers: Callable
    # Folders of finished runs, before their answers are read.
    prepare: Callable = lambda folders: None


def tools(binary, timeout):
    """All tools. `timeout` in seconds replaces the default one of process groups, except under ddp-doctor."""
    here = str(pytorch.HERE / "rank")
    plain = {"PYTHONPATH": here, "HANGBENCH_TIMEOUT": str(timeout), "LAUNCH_OUTPUT": "{folder}"}
    detail = {**plain, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    # The first dump loads much of PyTorch into every rank, which takes longer than the timeout.
    recorder = {**plain, "HANGBENCH_DUMPS": "{folder}/dumps", "HANGBENCH_TIMEOUT": str(4 * timeout)}

    def doctor_run(case, folder, variants):
        return doctor_command(case, folder, variants, binary)

    return [
        Tool("ddp-doctor", "ddp-doctor", "ddp-doctor", doctor_run, {}, doctor.answers),
        Tool("pytorch", "PyTorch's own error", "plain", plain_command, plain, pytorch.answers),
        Tool("detail", "`TORCH_DISTRIBUTED_DEBUG=DETAIL`", "detail", plain_command, detail, pytorch.answers_of_detail),
        Tool("torchfrtrace", "Flight Recorder, `torchfrtrace`", "recorder", plain_command, recorder, flight_recorder.answers,
             flight_recorder.analyze),
    ]


def version(binary):
    """The version of ddp-doctor, and the commit of the checkout."""
    if not binary.exists():
        return "no ddp-doctor"
    ours = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return f"{ours}, checkout at {commit.stdout.strip()}" if commit.returncode == 0 else ours
