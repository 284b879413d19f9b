"""Answers of PyTorch itself: the errors that ranks print, and the exit statuses that the launcher sees.

The job failed, and so the fault is detected, if the launcher exits with another status than 0. A job that the
benchmark has to end at its time limit is not detected. The text is read with sympathy: a message counts wherever a
rank printed it, an echo of another rank's failure does not count against PyTorch, and torchrun's "first observed
failure" does not blame a rank whose call only timed out.
"""

import pathlib
import re
import signal

from score import Answer

HERE = pathlib.Path(__file__).resolve().parent
FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')
TRACEBACK = "Traceback (most recent call last):"
PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
PAIR = re.compile(r"Rank (\d+) (?:is running collective.*?but Rank|has \d+ params, while rank) (\d+)", re.DOTALL)

# Messages that say what is wrong: pattern, class. The first that a rank printed decides. A group `ranks` holds the
# ranks that the message blames.
MESSAGES = [
    (re.compile(r"Detected mismatch between collectives on ranks"), "mismatch"),
    (re.compile(r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier"), "missing"),
    (re.compile(r"DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param"), "model"),
    (re.compile(r"did not receive grad for rank (?P<ranks>\d+)"), "model"),
    (re.compile(r"Expected to (?:have finished reduction|mark a variable ready only once)|"
                r"training graph has changed in this iteration"), "model"),
    (re.compile(r"op\.preamble\.length <= op\.nbytes"), "mismatch"),
    (re.compile(r"waiting for clients\. \d+/\d+ clients joined|wait timeout after \d+ms|client socket has timed out"), "start"),
]
# A peer's failure as the network shows it, or a timeout: says that a wait failed, not why.
ECHO = re.compile(
    r"Timed out waiting|Connection (?:closed|reset) by peer|Connection refused|Broken pipe|Application timeout|"
    r"monitoredBarrier|gloo/transport|DistBackendError|DistStoreError|DistNetworkError")
CLOSED = re.compile(r"Connection (?:closed|reset) by peer")
TIMED_OUT = re.compile(r"[Tt]imed out|timeout after")
MEMORY = re.compile(r"out of memory|can't allocate memory|MemoryError|Cannot allocate memory")
SUMMARY = re.compile(r"first observed failure\).*?rank\s+: (\d+) .*?exitcode\s+: (-?\d+)", re.DOTALL)


def exception(text):
    """The last traceback of a rank, from its first line, without the prefixes of ranks; None if there is none."""
    text = PREFIX.sub("", text)
    begin = text.rfind(TRACEBACK)
    return None if begin < 0 else text[begin:]


def innermost(traceback, file):
    """The line of the innermost frame in the program's file, as a set of at most one."""
    frames = [int(line) for path, line in FRAME.findall(traceback) if path.rsplit("/", 1)[-1] == file]
    return frozenset(frames[-1:])


def pairs(text):
    """The ranks that PyTorch's debug mode blames: the one in all pairs of the messages, if there is one."""
    found = {frozenset((int(a), int(b))) for a, b in PAIR.findall(text)}
    if not found:
        return frozenset()
    common = frozenset.intersection(*found)
    return common if len(common) == 1 else frozenset.union(*found)


def first_end(run):
    """Rank and status of the first rank that failed, from the launcher; None if it does not say."""
    failed = [(rank, status) for rank, status, _ in run.ends() if status != 0]
    if failed:
        return failed[0]
    summary = SUMMARY.search(run.output())
    return (int(summary[1]), int(summary[2])) if summary else None


def answers(run):
    if run.status is None and not run.ranks() and not run.output():
        return Answer(False, unusable="the program did not start within the time limit")
    if run.status is None or run.status == 0:
        return Answer(False)
    failures = [ns for _, status, ns in run.ends() if status != 0]
    found = read(run.ranks() or {0: run.output()}, run.output(), first_end(run), run.case.file)
    found.at_ns = min(failures, default=run.ended_ns)
    return found


def answers_of_detail(run):
    """The debug mode can crash the job that it observes, which is not an answer."""
    statuses = [status for _, status, _ in run.ends()]
    if -signal.SIGSEGV in statuses or "SIGSEGV" in run.output():
        return Answer(False, unusable="TORCH_DISTRIBUTED_DEBUG=DETAIL crashes the job (SIGSEGV)")
    return answers(run)


def read(ranks, launcher, first, file):
    """The answer in the output of a failed job.

    `ranks` is the output by rank, `launcher` that of the launcher, `first` rank and status of the first failure.
    """
    everything = "\n".join([*ranks.values(), launcher])
    tracebacks = {rank: found for rank, text in ranks.items() if (found := exception(text))}
    lines = frozenset().union(*(innermost(it, file) for it in tracebacks.values()))
    for pattern, fault in MESSAGES:
        matches = list(pattern.finditer(everything))
        if not matches:
            continue
        named = frozenset(
            int(rank) for match in matches if "ranks" in pattern.groupindex and match["ranks"]
            for rank in re.findall(r"\d+", match["ranks"]))
        named = named or pairs(everything)
        return Answer(True, fault, named, lines, confident=bool(named))
    # An exception of the program's own: it is the cause, the others are echoes.
    own = {rank: it for rank, it in tracebacks.items() if not ECHO.search(it[it.rfind("\n  File"):])}
    if own:
        fault = "memory" if any(MEMORY.search(it) for it in own.values()) else "exit"
        lines = frozenset().union(*(innermost(it, file) for it in own.values()))
        return Answer(True, fault, frozenset(own), lines, confident=True)
    # A rank that ended by itself without an exception: a signal, or an exit status.
    if first and first[0] not in tracebacks and first[1] != -signal.SIGTERM:
        return Answer(True, "exit", frozenset({first[0]}), lines, confident=True)
    if CLOSED.search(everything) and not TIMED_OUT.search(everything):
        return Answer(True, "exit", lines=lines)
    return Answer(True, lines=lines)
