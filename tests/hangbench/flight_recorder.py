"""Answers of PyTorch's Flight Recorder: what `torchfrtrace` prints about the dumps of all ranks."""

import os
import re
import subprocess
import sys

from score import Answer

MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")
CULPRIT = re.compile(r"Culprit rank (\d+); Error type: (\w+)")
STACK = re.compile(r"(\S+\.py):(\d+)")

# torchfrtrace takes seconds to start: one process analyzes the dumps of all folders, each in a fork of its own.
ANALYZE = """
import os, sys
from torch.distributed.flight_recorder.fr_trace import main
for folder in sys.argv[1:]:
    if os.fork() == 0:
        out = os.open(folder + "/torchfrtrace", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        main(["-p", "rank_", folder + "/dumps"])
        sys.exit()
    os.wait()
"""


def analyze(folders):
    """Runs torchfrtrace on the dumps of these runs, if it has not run."""
    todo = [str(it) for it in folders if (it / "dumps").is_dir() and not (it / "torchfrtrace").exists()]
    if todo:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        subprocess.run([sys.executable, "-c", ANALYZE, *todo], env=environment, check=True)


def answers(run):
    if not list((run.folder / "dumps").glob("rank_*")):
        return Answer(False, unusable="no rank lived long enough to write a dump")
    return read((run.folder / "torchfrtrace").read_text(), run.case.file)


def read(text, file):
    """The answer in the output of torchfrtrace."""
    if "Traceback (most recent call last):" in text:
        error = text.strip().splitlines()[-1]
        return Answer(False, unusable="torchfrtrace fails: " + error.split(":")[0])
    lines = frozenset(int(line) for path, line in STACK.findall(text) if path.rsplit("/", 1)[-1] == file)
    culprits = CULPRIT.findall(text)
    if culprits:
        return Answer(True, "mismatch", frozenset(int(rank) for rank, _ in culprits), lines, confident=True)
    missing = MISSING.search(text)
    if missing:
        ranks = frozenset(int(rank) for rank in re.findall(r"\d+", missing[1]))
        return Answer(True, "missing", ranks, lines, confident=True)
    return Answer(False)
