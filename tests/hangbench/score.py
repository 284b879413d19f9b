"""What an answer is, and how it compares with the truth of a program."""

import dataclasses
import math

# The classes of faults, in words that any tool can use, by code of the truth. The first is the class of the code; a
# fault can rightly be described by the others as well, since a tool may see another side of it.
#
#   missing   a rank does not make a call that its peers wait in
#   mismatch  calls that meet disagree: operation, size, dtype, reduction, root, splits, order
#   cycle     ranks wait for each other across groups or messages
#   message   a message has no partner, or another tag or size
#   group     a group is not created alike by all ranks
#   exit      a rank's process ended, by itself or by a failure
#   stuck     a rank is stopped, or does not get on outside of calls
#   network   every rank is in the call, and no data arrives
#   start     ranks do not come together at the start
#   model     DDP's model, its parameters or its gradients differ or are not used as DDP requires
#   memory    memory ran out, or is about to
#   slow      a rank or the network makes the job slow
#   misuse    a call whose result is not waited for, or racing calls
CLASSES = {
    "DD101": ("missing", "stuck"),
    "DD102": ("exit", "missing"),
    "DD103": ("mismatch", "missing"),
    "DD104": ("mismatch",),
    "DD105": ("mismatch",),
    "DD106": ("mismatch",),
    "DD107": ("mismatch",),
    "DD108": ("mismatch",),
    "DD109": ("mismatch",),
    "DD110": ("missing", "mismatch"),
    "DD111": ("cycle",),
    "DD112": ("cycle", "message"),
    "DD113": ("message", "missing"),
    "DD114": ("group", "missing", "mismatch", "start"),
    "DD115": ("misuse",),
    "DD116": ("network",),
    "DD117": ("missing", "mismatch"),
    "DD201": ("exit",),
    "DD202": ("exit",),
    "DD203": ("stuck", "missing"),
    "DD204": ("stuck", "missing"),
    "DD205": ("missing", "exit", "mismatch", "stuck"),
    "DD206": ("stuck", "missing", "slow"),
    "DD301": ("start",),
    "DD302": ("start",),
    "DD303": ("start",),
    "DD304": ("start",),
    "DD305": ("start",),
    "DD306": ("start",),
    "DD307": ("start",),
    "DD308": ("start", "network"),
    "DD401": ("model",),
    "DD402": ("model", "missing", "mismatch"),
    "DD403": ("model",),
    "DD404": ("model", "mismatch"),
    "DD405": ("model",),
    "DD406": ("model", "missing", "mismatch"),
    "DD407": ("model",),
    "DD501": ("memory", "exit"),
    "DD502": ("memory",),
    "DD503": ("memory",),
    "DD504": ("memory",),
    "DD505": ("memory",),
    "DD506": ("memory", "exit"),
    "DD601": ("slow",),
    "DD602": ("slow",),
    "DD603": ("slow",),
    "DD604": ("slow",),
    "DD605": ("slow",),
    "DD701": ("model",),
}


@dataclasses.dataclass
class Answer:
    """What a tool said about one run."""

    # Whether it reported that something is wrong.
    detected: bool
    # One of the classes, or None if it names none.
    fault: str | None = None
    # The ranks that it names as the cause; empty if it names none.
    ranks: frozenset = frozenset()
    # Line numbers in the program's file.
    lines: frozenset = frozenset()
    # Whether it states the ranks as a fact, and not as a suspicion.
    confident: bool = False
    # Unix time in ns, or None.
    at_ns: int | None = None
    # Why the tool has no answer for this run, which then counts nowhere but as n/a.
    unusable: str | None = None


@dataclasses.dataclass
class Score:
    """Whether an answer is right, by column; None where the truth has nothing to compare with."""

    detected: bool
    fault: bool | None = None
    ranks: bool | None = None
    lines: bool | None = None
    wrong_and_confident: bool = False
    latency_ms: float | None = None


def kind(case):
    """What a fault does to its job: `stops`, `wrong` results, or `other` (slow, advice, a job that recovers)."""
    truth = case.truth
    verdict, code = truth.get("verdict"), truth.get("code", "")
    if truth.get("hang") or verdict in ("hang", "crash"):
        return "stops"
    if verdict is None:
        return "stops" if code[:3] in ("DD1", "DD2", "DD3", "DD4") and code not in ("DD115", "DD407") else "other"
    return "wrong" if verdict == "wrong" else "other"


def culprits(case):
    """The ranks that cause the fault, or None if the truth names none."""
    ranks = case.truth.get("ranks")
    return frozenset(ranks["root"]) if ranks and ranks["root"] else None


def expected_lines(case):
    """The marked lines of the culprits; those of all ranks if no culprit has one; None without marks."""
    marked = case.marked_lines()
    of_culprits = {line for rank, line in marked.items() if rank in (culprits(case) or ())}
    return frozenset(of_culprits or marked.values()) or None


def score(case, answer, decisive_ns=None):
    """Compares the answer for a faulty case with its truth."""
    if not answer.detected:
        return Score(False, False, False if culprits(case) else None, False if expected_lines(case) else None)
    codes = [case.truth[key] for key in ("code", "or_code") if key in case.truth]
    accepted = {fault for code in codes for fault in CLASSES[code]}
    root, lines = culprits(case), expected_lines(case)
    stated = case.truth.get("ranks")
    innocent = answer.ranks - frozenset(stated["root"]) if stated else frozenset()
    if "DD117" in codes and answer.fault == "missing":
        # Some ranks make a call that others do not: that the others are missing from it is a fact.
        innocent -= frozenset(stated.get("victims", ()))
    latency = (answer.at_ns - decisive_ns) / 1e6 if answer.at_ns and decisive_ns else None
    return Score(
        detected=True,
        fault=answer.fault in accepted,
        ranks=answer.ranks == root if root else None,
        lines=lines <= answer.lines if lines else None,
        wrong_and_confident=bool(innocent) and answer.confident,
        latency_ms=latency,
    )


def wilson(right, of, z=1.959964):
    """The 95 % interval of a proportion (Wilson 1927), as two shares; (0, 1) for no observations."""
    if of == 0:
        return 0.0, 1.0
    share = right / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return max(0.0, middle - half), min(1.0, middle + half)
