"""Answers of ddp-doctor: the first finding of the report that `run --report` writes."""

import datetime
import json

from score import CLASSES, Answer


def unix_ns(text):
    """The Unix time in ns of an RFC 3339 time in UTC; fromisoformat reads six decimals only."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.timezone.utc).timestamp()
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0")[:9] or 0)


def answers(run):
    try:
        report = json.loads((run.folder / "report.json").read_text())
    except (OSError, ValueError) as error:
        return Answer(False, unusable=f"no report: {error}")
    return answer(report, run.case.file)


def answer(report, file):
    # DD9xx say what could not be seen; they are not findings about the job.
    findings = [it for it in report["findings"] if not it["code"].startswith("DD9")]
    if not findings:
        return Answer(False)
    finding = findings[0]
    lines = set()
    for call in finding["per_rank"]:
        place = call.get("where") or {}
        if place.get("file", "").endswith(file):
            lines.add(place["line"])
    ranks = finding["ranks"]
    return Answer(
        detected=True,
        fault=CLASSES[finding["code"]][0],
        ranks=frozenset(ranks["root"]),
        lines=frozenset(lines),
        confident=ranks["root_confidence"] != "suspected",
        at_ns=unix_ns(finding["detected_at"]),
    )
