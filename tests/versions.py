#!/usr/bin/env python3
"""Runs the live jobs of tests/jobs with several versions of PyTorch and prints a table of the results.

    tests/versions.py                                       the default jobs on the default versions
    tests/versions.py --versions 2.4.1 2.8.0 --jobs op_mismatch killed
    tests/versions.py --write docs/pytorch-versions.md      replaces the table in that file

A job runs under `ddp-doctor run` as in `cargo test`, and its report is compared with the truth at the head of the
program: verdict, code, root causes, cause and lines. The exit status is 1 if a result differs.
`scripts/pytorch-env` provides the environments; `--drop` removes those that did not exist before.
Build first: cargo build --workspace.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile

try:
    import tomllib
except ImportError:
    sys.exit("tests/versions.py needs Python 3.11 or later; the jobs run with the Python of each environment")

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOBS = ROOT / "tests" / "jobs"
VERSIONS = ["2.4.1", "2.8.0", "2.15.0"]
DEFAULT = """
op_mismatch op_mismatch_of_four shape_mismatch dtype_mismatch reduce_op_mismatch root_mismatch swapped_calls
p2p_missing_partner p2p_other_size p2p_other_tag p2p_partner_ended p2p_receive_first p2p_ring_of_three p2p_send_first
p2p_across_all_reduce p2p_batch p2p_any_source p2p_pipeline p2p_received_later
new_group_by_a_subset new_group_by_members_then_by_all new_group_in_another_order new_group_on_one_rank
new_group_with_other_members uneven_then_barrier uneven_then_exit uneven_now_and_then uneven_evaluation
head_skipped_behind_a_hook head_skipped_by_all head_skipped_by_alternating_ranks head_skipped_by_one_rank
head_skipped_in_the_last_step no_sync_off_by_one model_in_another_order model_of_other_shapes model_with_a_layer_more
models_wrapped_in_many_ways swallowed_exception two_threads_on_one_group work_never_waited_for work_waited_later
killed os_exit atexit_barrier conditional_barrier two_groups_in_opposite_order three_groups_in_a_cycle subgroups
join_with_uneven_inputs joined_uneven_inputs many_calls_of_a_step data_loader_workers ready_twice nan_skipped_early
rank_zero_checkpoint exception_and_barrier spawned second_generation first_step_compiles step_tried_again
asynchronous_groups_in_opposite_order gather_crosses_barrier
""".split()
ABORT = "terminate called without an active exception"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"


def truth_of(program):
    """The TOML at the head of a program, and its lines marked `# HERE rank 0 2` by rank."""
    lines = program.read_text().splitlines()
    head = [line[2:] for line in lines if line.startswith("# ")]
    begin = head.index("/// truth") + 1
    truth = tomllib.loads("\n".join(head[begin : head.index("///", begin)] if "///" in head[begin:] else head[begin:]))
    marked = {}
    for number, line in enumerate(lines, 1):
        _, found, ranks = line.partition("# HERE rank ")
        if found:
            marked.update((int(rank), number) for rank in ranks.split())
    return truth, marked


def differences(truth, marked, program, status, report, errors):
    """What differs from the truth, in a few words each."""
    if truth.get("healthy"):
        if status != 0:
            yield "exit status %s" % status
        if report["verdict"] != "healthy":
            yield "verdict %s" % report["verdict"]
        for finding in report["findings"]:
            yield finding["code"]
        if sum(line.startswith("ddp-doctor:") for line in errors.splitlines()) > 2:
            yield "not silent"
        return
    if (status == 75) != truth.get("hang", False):
        yield "exit status %s" % status
    initiating = [finding for finding in report["findings"] if finding["role"] == "initiating"]
    if len(initiating) != 1:
        yield "%d initiating findings, verdict %s" % (len(initiating), report["verdict"])
        return
    finding = initiating[0]
    if finding["code"] not in (truth["code"], truth.get("or_code")):
        yield "%s, not %s" % (finding["code"], truth["code"])
    if finding["ranks"]["root"] != truth.get("root"):
        yield "root %s, not %s" % (finding["ranks"]["root"], truth.get("root"))
    confidence = truth.get("root_confidence")
    if confidence and finding["ranks"]["root_confidence"] != confidence:
        yield "root %s, not %s" % (finding["ranks"]["root_confidence"], confidence)
    cause = (finding.get("cause") or {}).get("kind")
    if truth.get("cause") and cause != truth["cause"]:
        yield "cause %s, not %s" % (cause, truth["cause"])
    if truth.get("says") and truth["says"] not in finding["summary"]:
        yield "other words"
    for rank, line in sorted(marked.items()):
        places = [call.get("where") or {} for call in finding["per_rank"] if call["rank"] == rank]
        place = places[0] if places else {}
        if place.get("line") != line or not str(place.get("file")).endswith(program.name):
            yield "rank %d at line %s, not %d" % (rank, place.get("line"), line)


def free_port():
    """A port that no outgoing connection will take meanwhile."""
    while True:
        with socket.socket() as listener:
            try:
                listener.bind(("", random.randrange(20000, 32000)))
                return listener.getsockname()[1]
            except OSError:
                pass


def run(binary, venv, program):
    """What differs from the truth, and what the job printed."""
    for _ in range(3):
        result, done = run_once(binary, venv, program)
        # PyTorch aborts at times while the interpreter exits, also without ddp-doctor, if a thread of Gloo's is busy.
        if not result or done is None or ABORT not in done.stderr:
            break
    return result, done


def run_once(binary, venv, program):
    truth, marked = truth_of(program)
    scratch = tempfile.mkdtemp(prefix="ddp-doctor-versions-")
    try:
        patience = "1" if truth.get("hang") else "60"
        command = [str(binary), "run", "--run-dir", "run", "--report", "report.json", "--on-hang", "kill"]
        command += ["--kill-after", patience, *truth.get("run_options", [])]
        if "launcher" in truth:
            command += ["--", truth["launcher"]]
        else:
            command += ["--nproc-per-node", str(truth["nproc"])]
        environment = dict(os.environ, OMP_NUM_THREADS="1", DDP_DOCTOR_TEST_STAMP=os.path.join(scratch, "stamp"))
        environment["PATH"] = "%s/bin:%s" % (venv, environment["PATH"])
        environment["PET_MASTER_PORT"] = str(free_port())  # torchrun's default was one port for all jobs
        done = subprocess.run(
            [*command, str(program)], cwd=scratch, env=environment, capture_output=True, text=True, timeout=400
        )
        with open(os.path.join(scratch, "report.json")) as file:
            report = json.load(file)
        return "; ".join(differences(truth, marked, program, done.returncode, report, done.stderr)), done
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return "%s: %s" % (type(error).__name__, error), None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def environment_of(version):
    """The folder of the environment, and whether it was there before."""
    script = str(ROOT / "scripts" / "pytorch-env")
    environment = dict(os.environ, TORCH=version)
    there = subprocess.run([script, "--find"], env=environment, capture_output=True).returncode == 0
    made = subprocess.run([script], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return made.stdout.strip(), there


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--jobs", nargs="+", default=DEFAULT, help="names below tests/jobs, with or without folder")
    parser.add_argument("--binary", default=str(ROOT / "target" / "debug" / "ddp-doctor"))
    parser.add_argument("--parallel", type=int, default=2, metavar="N")
    parser.add_argument("--drop", action="store_true", help="remove environments that this made")
    parser.add_argument("--write", metavar="FILE", help="replace the table in this file")
    parser.add_argument("--verbose", action="store_true", help="print what jobs printed whose result differs")
    options = parser.parse_args()

    programs = []
    for name in options.jobs:
        kinds = [""] if "/" in name else ["faulty", "healthy"]
        found = [path for path in (JOBS / kind / (name + ".py") for kind in kinds) if path.is_file()]
        if not found:
            parser.error("there is no job %s" % name)
        programs += found

    results = {}
    for version in options.versions:
        venv, there = environment_of(version)
        with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
            for program, (result, done) in zip(programs, pool.map(lambda it: run(options.binary, venv, it), programs)):
                results[program, version] = result
                name = "%s/%s" % (program.parent.name, program.stem)
                print("%-8s %-50s %s" % (version, name, result or "ok"), flush=True)
                if result and options.verbose and done is not None:
                    print(done.stdout, done.stderr, sep="\n", flush=True)
        if options.drop and not there:
            shutil.rmtree(venv)

    if options.write:
        write(pathlib.Path(options.write), options, programs, results)
    wrong = sum(1 for result in results.values() if result)
    print("%d of %d results are as they should be" % (len(results) - wrong, len(results)))
    return 1 if wrong else 0


def write(file, options, programs, results):
    rows = ["| job | %s |" % " | ".join(options.versions), "|---|%s" % ("---|" * len(options.versions))]
    for program in programs:
        cells = [results[program, version] or "ok" for version in options.versions]
        rows.append("| %s/%s | %s |" % (program.parent.name, program.stem, " | ".join(cells)))
    counts = []
    for version in options.versions:
        right = sum(1 for program in programs if not results[program, version])
        counts.append("%d of %d" % (right, len(programs)))
    rows.append("| **as the truth says** | %s |" % " | ".join(counts))
    python = "%d.%d" % sys.version_info[:2]
    said = "Run on %s with Python %s: `%s`.\n\n" % (datetime.date.today(), python, "tests/versions.py --versions " + " ".join(options.versions))
    text = file.read_text() if file.is_file() else BEGIN + END
    table = re.escape(BEGIN) + ".*" + re.escape(END)
    file.write_text(re.sub(table, lambda _: BEGIN + said + "\n".join(rows) + "\n" + END, text, flags=re.DOTALL))


if __name__ == "__main__":
    sys.exit(main())
