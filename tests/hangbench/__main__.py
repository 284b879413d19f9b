#!/usr/bin/env python3
"""Runs the programs of tests/jobs under ddp-doctor and under what PyTorch offers without it, and compares the answers.

    make hangbench                                            everything: about two hours on two processors
    make hangbench BENCH="--family missing groups"            families
    make hangbench BENCH="--program uneven_then_exit --tool ddp-doctor pytorch"
    make hangbench BENCH="--table"                            only the table of what has run

Results stay in target/hangbench, and an interrupted run continues: a program runs again only if it has changed, or
with --fresh. docs/benchmark.md explains the columns, and how to add a program or a tool.
"""

import argparse
import concurrent.futures
import json
import pathlib
import sys
import threading

import programs
import runs
import table
from tools import tools, version


def arguments():
    parser = argparse.ArgumentParser(
        prog="hangbench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--family", nargs="+", default=[], help="folders of tests/jobs")
    add("--program", nargs="+", default=[], help="names of programs, without .py")
    add("--variant", choices=["faulty", "healthy"], help="run one variant only")
    add("--tool", nargs="+", default=[], help="names of tools")
    add("--timeout", type=float, default=10, help="process-group timeout in seconds without ddp-doctor (%(default)s)")
    add("--parallel", type=int, default=2, help="programs at a time (%(default)s)")
    add("--fresh", action="store_true", help="run programs again that have run")
    add("--table", action="store_true", help="run nothing")
    add("--write", type=pathlib.Path, metavar="FILE", help="replace the table in this file")
    add("--details", action="store_true", help="print the answer of each tool for each program")
    add("--binary", type=pathlib.Path, default=programs.ROOT / "target" / "debug" / "ddp-doctor")
    add("--results", type=pathlib.Path, default=programs.ROOT / "target" / "hangbench")
    return parser.parse_args()


def selected(options):
    cases = programs.cases()
    for given, known in ((options.family, {it.family for it in cases}), (options.program, {it.name for it in cases})):
        unknown = set(given) - known
        if unknown:
            sys.exit(f"not in tests/jobs: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
    return [
        case for case in cases
        if (not options.family or case.family in options.family)
        and (not options.program or case.name in options.program)
        and options.variant in (None, case.variant)
    ]


class Results:
    """Finished runs: one line of JSON each in runs.jsonl; a later line for the same run replaces an earlier one."""

    def __init__(self, folder, timeout):
        self.folder, self.timeout = folder, timeout
        self.file = folder / "runs.jsonl"
        self.lock = threading.Lock()
        self.finished = {}
        for line in self.file.read_text().splitlines() if self.file.exists() else []:
            try:
                entry = json.loads(line)
                self.finished[entry["kind"], entry["case"]] = entry
            except (ValueError, KeyError):
                pass  # a line that an interruption cut off

    def folder_of(self, kind, case):
        return self.folder / kind / case.id

    def has(self, kind, case):
        entry = self.finished.get((kind, case.id))
        return entry is not None and self.key(case) == {key: entry[key] for key in ("program", "timeout")}

    def key(self, case):
        return {"program": case.fingerprint(), "timeout": self.timeout}

    def add(self, kind, run):
        entry = {"kind": kind, "case": run.case.id, **self.key(run.case), "status": run.status,
                 "seconds": run.seconds, "skipped": run.skipped}
        with self.lock, open(self.file, "a") as file:
            file.write(json.dumps(entry) + "\n")
        self.finished[kind, run.case.id] = entry


def limit(case, timeout, tool):
    """Seconds after which the benchmark ends a job."""
    extra = case.truth.get("seconds", 0)
    return 120 + extra if tool.kind == "ddp-doctor" else 4 * timeout + 80 + extra


def run_all(cases, wanted, results, options):
    variants = options.results / "jobs"
    programs.write_variants(variants)
    kinds = {tool.kind: tool for tool in wanted}
    todo = [
        (tool, case) for tool in kinds.values() for case in cases
        if options.fresh or not results.has(tool.kind, case)
    ]
    counter = iter(range(1, len(todo) + 1))

    def one(tool, case):
        folder = runs.fresh_folder(results.folder_of(tool.kind, case))
        (folder / "dumps").mkdir()
        command = tool.command(case, folder, variants)
        run = runs.execute(case, command, tool.environment, folder, limit(case, options.timeout, tool))
        results.add(tool.kind, run)
        outcome = run.skipped or ("time limit" if run.status is None else f"status {run.status}")
        print(f"{next(counter)}/{len(todo)} {tool.kind} {case.id}: {outcome}, {run.seconds:.1f} s", flush=True)

    # What measures processor time runs last, alone.
    for alone, workers in ((False, options.parallel), (True, 1)):
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            turns = [pool.submit(one, *it) for it in todo if it[1].truth.get("alone", False) == alone]
            try:
                for turn in turns:
                    turn.result()
            except BaseException:
                # Programs that run come to their end; the others wait for the next time.
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def main():
    options = arguments()
    options.results = options.results.resolve()
    options.binary = options.binary.resolve()
    all_tools = tools(options.binary, options.timeout)
    unknown = set(options.tool) - {tool.name for tool in all_tools}
    if unknown:
        sys.exit(f"unknown tools: {', '.join(sorted(unknown))}; there are: {', '.join(it.name for it in all_tools)}")
    wanted = [tool for tool in all_tools if not options.tool or tool.name in options.tool]
    if any(tool.kind == "ddp-doctor" for tool in wanted) and not options.binary.exists():
        sys.exit(f"{options.binary} is missing: cargo build --workspace --all-features")
    cases = selected(options)
    options.results.mkdir(parents=True, exist_ok=True)
    results = Results(options.results, options.timeout)
    if not options.table:
        run_all(cases, wanted, results, options)
    table.report(cases, wanted, results, version(options.binary), options)


if __name__ == "__main__":
    main()
