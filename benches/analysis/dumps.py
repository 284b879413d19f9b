"""Cost of analyzing Flight Recorder dumps, compared with PyTorch's analyzer.

    python benches/analysis/dumps.py                          # 1 024 ranks with 2 000 entries each
    python benches/analysis/dumps.py --upstream               # also torchfrtrace on the same files, and the ratios
    python benches/analysis/dumps.py --quick

Writes the dumps of a job whose rank 5 stops calling, and measures time and memory of `ddp-doctor analyze`.
"""

import argparse
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import built, machine  # noqa: E402

MISSING = 5
"""The rank that makes no further calls."""
GROUP = 8
"""Number of ranks in each smaller group."""


def entry(record, rank, group, seq, done, frames):
    number, description = group
    return {
        "frames": frames,
        "record_id": record,
        "pg_id": int(description == "model"),
        "process_group": (number, description),
        "thread_name": "python",
        "thread_id": "140000",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + record * 1_000_000 + rank,
        "input_sizes": [[1024, 64]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024, 64]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1_700_000_001_000_000_000 if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def dump(rank, ranks, entries):
    """The dump of a rank: calls of its small group, every eighth one of all ranks."""
    first = rank // GROUP * GROUP
    members = list(range(first, min(first + GROUP, ranks)))
    groups = [("0", "default_pg"), (str(1 + rank // GROUP), "model")]
    library = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    frames = [
        [
            {"name": "all_reduce", "filename": library, "line": 4174},
            {"name": "step", "filename": "/job/train.py", "line": 10 + number},
        ]
        for number in range(2)
    ]
    seqs = [0, 0]
    calls = []
    last = entries - 3
    for record in range(entries if rank != MISSING else last):
        which = int(record % 8 != 7)
        seqs[which] += 1
        calls.append(entry(record, rank, groups[which], seqs[which], record < last, frames[which]))
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))},
            groups[1][0]: {"name": groups[1][0], "desc": "model", "ranks": str(members)},
        },
        "pg_status": {},
        "entries": calls,
    }


def run(command):
    """Seconds, processor seconds and peak memory (MiB) of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    # A process of its own measures the peak of this command alone.
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code] + command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, int(done.stdout.split()[-1]) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--program", help="the program; default: the release build")
    parser.add_argument("--upstream", action="store_true", help="also measure torchfrtrace of this Python")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    ranks, entries = (16, 100) if options.quick else (options.ranks, options.entries)
    print(machine())
    folder = tempfile.mkdtemp(prefix="ddp-doctor-dumps-")
    try:
        size = 0
        for rank in range(ranks):
            path = os.path.join(folder, "trace_rank_%d" % rank)
            with open(path, "wb") as file:
                pickle.dump(dump(rank, ranks, entries), file, protocol=2)
            size += os.path.getsize(path)
        print("%d dumps of %d entries, %.0f MiB" % (ranks, entries, size / 2**20))
        commands = {"ddp-doctor": [options.program or built("ddp-doctor"), "analyze", folder]}
        if options.upstream:
            tool = os.path.join(os.path.dirname(sys.executable), "torchfrtrace")
            commands["torchfrtrace"] = [tool, "-p", "trace_rank_", folder]
        measured = []
        for name, command in commands.items():
            measured.append(run(command))
            print("%-13s %8.2f s  %8.2f s of processor time  %7.0f MiB" % ((name,) + measured[-1]), flush=True)
        if len(measured) == 2:
            ratios = tuple(theirs / ours for ours, theirs in zip(*measured))
            print("ratio         %8.1f    %8.1f                       %7.1f" % ratios)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
