"""The tables: scores of all tools by what the faults do to the job, and by family."""

import collections
import dataclasses
import datetime
import re
import statistics
import sys

import runs
from programs import ROOT, cases
from score import Score, kind, score, wilson

sys.path.append(str(ROOT / "benches"))
from common import machine  # noqa: E402

BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
KINDS = [
    ("stops", "Faults that stop the job: hangs and crashes"),
    ("wrong", "Faults that make results wrong while the job runs on"),
    ("other", "Slow ranks, memory, advice, and failures that the job recovers from"),
]


@dataclasses.dataclass
class Result:
    """The answer of a tool for a case, and its score if the case is faulty."""

    case: object
    answer: object
    score: Score | None


@dataclasses.dataclass
class ToolResults:
    tool: object
    results: list
    # Why there is no answer, with the number of runs.
    unusable: collections.Counter

    def of(self, kind_name):
        return [it for it in self.results if it.case.is_faulty and kind(it.case) == kind_name]

    def healthy(self):
        return [it for it in self.results if not it.case.is_faulty]


def collect(selected, tool, results):
    """The answers of a tool for the selected cases that have run."""
    have = [case for case in selected if results.has(tool.kind, case)]
    tool.prepare([results.folder_of(tool.kind, case) for case in have])
    found, unusable = [], collections.Counter()
    for case in have:
        run = runs.stored(results.folder_of(tool.kind, case), case)
        if run.skipped:
            unusable["cannot run here: " + run.skipped] += 1
            continue
        answer = tool.answers(run)
        if answer.unusable:
            unusable[answer.unusable] += 1
            continue
        found.append(Result(case, answer, score(case, answer, run.decisive_ns()) if case.is_faulty else None))
    return ToolResults(tool, found, unusable)


def share(right, of):
    if of == 0:
        return "–"
    low, high = wilson(right, of)
    return f"{right}/{of} ({100 * low:.0f}–{100 * high:.0f} %)"


def column(results, name):
    """The share of right answers among the results that have something to compare."""
    values = [getattr(it.score, name) for it in results if getattr(it.score, name) is not None]
    return share(sum(values), len(values))


def milliseconds(value):
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms"


def latency(results):
    values = [it.score.latency_ms for it in results if it.score.latency_ms is not None]
    if not values:
        return "–"
    return f"{milliseconds(statistics.median(values))}, at most {milliseconds(max(values))} ({len(values)})"


def rows_of(all_results, kind_name):
    header = ["tool", "detected", "class", "exact ranks", "line", "wrong and confident", "latency: median (runs)"]
    rows = [header]
    for it in all_results:
        results = it.of(kind_name)
        if results:
            columns = [column(results, name) for name in ("detected", "fault", "ranks", "lines", "wrong_and_confident")]
            rows.append([it.tool.title, *columns, latency(results)])
    return rows


def rows_of_healthy(all_results):
    rows = [["tool", "healthy programs", "false alarms"]]
    for it in all_results:
        healthy = it.healthy()
        if healthy:
            alarms = sum(result.answer.detected for result in healthy)
            rows.append([it.tool.title, str(len(healthy)), share(alarms, len(healthy))])
    return rows


def rows_by_family(all_results):
    rows = [["family", *(it.tool.title for it in all_results)]]
    families = sorted({result.case.family for it in all_results for result in it.results})
    for family in families:
        row = [family]
        for it in all_results:
            mine = [result for result in it.results if result.case.family == family]
            faulty = [result.score for result in mine if result.case.is_faulty]
            counts = [sum(bool(getattr(one, name)) for one in faulty) for name in ("detected", "fault", "ranks", "lines")]
            alarms = sum(result.answer.detected for result in mine if not result.case.is_faulty)
            cell = f"{' · '.join(map(str, counts))} of {len(faulty)}; {alarms} of {len(mine) - len(faulty)}"
            row.append(cell if mine else "–")
        rows.append(row)
    return rows


def markdown(rows):
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def rows_of_runs(all_results):
    """How many programs of the benchmark each tool has answered."""
    total = collections.Counter(case.is_faulty for case in cases())
    rows = [["tool", "faulty programs", "healthy programs", "n/a"]]
    for it in all_results:
        have = collections.Counter(result.case.is_faulty for result in it.results)
        reasons = "; ".join(f"{count}: {why}" for why, count in it.unusable.most_common()) or "–"
        rows.append([it.tool.title, f"{have[True]} of {total[True]}", f"{have[False]} of {total[False]}", reasons])
    return rows


def compose(all_results, versions, timeout):
    parts = [
        f"{datetime.date.today()}; {versions}; {machine()}. Process-group timeout without ddp-doctor: {timeout:g} s.",
        "**Answers that can be scored**, of all programs of the benchmark",
        markdown(rows_of_runs(all_results)),
    ]
    for name, title in KINDS:
        rows = rows_of(all_results, name)
        if len(rows) > 1:
            parts += [f"**{title}**", markdown(rows)]
    healthy = rows_of_healthy(all_results)
    if len(healthy) > 1:
        parts += ["**Healthy programs**", markdown(healthy)]
    families = rows_by_family(all_results)
    if len(families) > 1:
        title = "**By family**: detected · class · exact ranks · line, of the faulty programs; false alarms, of the healthy ones"
        parts += [title, markdown(families)]
    return "\n\n".join(parts) + "\n"


def print_details(all_results):
    for it in all_results:
        for result in it.results:
            answer = result.answer
            if result.score:
                marks = "".join({True: "+", False: "-", None: " "}[getattr(result.score, name)]
                                for name in ("detected", "fault", "ranks", "lines"))
                marks += "!" if result.score.wrong_and_confident else " "
            else:
                marks = "FALSE" if answer.detected else "     "
            print(f"{marks} {it.tool.name} {result.case.id} {result.case.truth.get('code', '')}: {answer.fault}, "
                  f"ranks {sorted(answer.ranks)}, lines {sorted(answer.lines)}")


def report(selected, wanted, results, versions, options):
    all_results = [collect(selected, tool, results) for tool in wanted]
    if options.details:
        print_details(all_results)
    text = compose(all_results, versions, options.timeout)
    print(text)
    if options.write:
        page = options.write.read_text()
        pattern = re.escape(BEGIN) + ".*" + re.escape(END)
        options.write.write_text(re.sub(pattern, lambda _: BEGIN + text + END, page, flags=re.DOTALL))
