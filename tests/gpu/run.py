"""Real DDP jobs over NCCL on a GPU, under `ddp-doctor run`: `make gpu`.

Each fault of job.py is seen in several ways: by PyTorch's calls, by the preloaded library alone (also in place of
`libnccl.so.2`, and with what is off by default), by what NCCL tells its profiler alone, and by PyTorch's and NCCL's
calls together. Three ranks share a GPU where there are fewer. A healthy job says nothing, and its steps are timed
with us and without, in turns.

Without a GPU all of it is skipped. `--backend gloo` shows that the tests themselves work, by the hooks alone.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RANKS = 3

# What is to be found, by fault; of several codes whichever there is more evidence for. None: nothing.
HOOKS = {
    "none": None,
    "missing": ({"DD101", "DD204"}, [1]),
    "shape": ({"DD104"}, [1]),
    "exit": ({"DD102"}, [1]),
    "memory": ({"DD501"}, [1]),
}
# Without the hooks an exception is one that ends a process.
NCCL = dict(HOOKS, memory=({"DD201", "DD202"}, [1]))
# Off by default.
SAMPLED = {"DDP_DOCTOR_GPU_MEMORY": "1", "DDP_DOCTOR_NCCL_COMPLETION": "1"}
WAYS = {
    "hooks": ([], {}, HOOKS),
    # A package that is not there switches the hooks off.
    "preloaded": (["--nccl", "always"], {"DDP_DOCTOR_PYTHON": "/nowhere"}, NCCL),
    "soname": (["--nccl", "soname"], {"DDP_DOCTOR_PYTHON": "/nowhere"}, NCCL),
    "profiler": (["--nccl", "profiler"], {"DDP_DOCTOR_PYTHON": "/nowhere"}, NCCL),
    "both": (["--nccl", "always"], {}, HOOKS),
    "sampled": (["--nccl", "always"], {"DDP_DOCTOR_PYTHON": "/nowhere", **SAMPLED}, NCCL),
}


def has_gpu():
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")


def torchrun(fault):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return command + [os.path.join(HERE, "job.py"), fault]


def run(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def has_memory(memory):
    """Whether the report has what PyTorch's allocator holds on the GPU of a rank."""
    allocated, reserved = memory.get("device_allocated_bytes"), memory.get("device_reserved_bytes")
    return bool(allocated and reserved and reserved >= allocated)


def check(program, way, fault, environment, folder):
    """A line that says what is wrong, or None. Leaves the run directory, the report and the output in the folder."""
    options, more, expected = WAYS[way]
    os.makedirs(folder)
    report = os.path.join(folder, "report.json")
    command = [program, "run", "--report", report, "--run-dir", os.path.join(folder, "run")]
    command += ["--on-hang", "kill", "--kill-after", "2", "--stall-after", "15"] + options + ["--"] + torchrun(fault)
    status, output, said = run(command, dict(environment, **more))
    with open(os.path.join(folder, "output"), "w") as file:
        file.write(output + said)
    with open(report) as file:
        report = json.load(file)
    findings = [finding for finding in report["findings"] if finding["severity"] != "note"]
    first = next((finding for finding in findings if finding["role"] == "initiating"), None)
    if way == "hooks" and environment.get("GPU_TEST_BACKEND", "nccl") == "nccl":
        lacking = [rank["rank"] for rank in report["ranks"] if not has_memory(rank.get("memory") or {})]
        if lacking:
            return "ranks %s without the memory of the allocator" % lacking
    if expected[fault] is None:
        codes = [finding["code"] for finding in findings]
        return None if (status, report["verdict"]) == (0, "healthy") else "status %d, findings %s\n%s" % (status, codes, said)
    codes, ranks = expected[fault]
    found = first and (first["code"], first["ranks"]["root"])
    if not found or found[0] not in codes or found[1] != ranks:
        return "found %s, not %s of ranks %s\n%s" % (found, " or ".join(sorted(codes)), ranks, said)
    if len([finding for finding in findings if finding["role"] == "initiating"]) > 1:
        return "told twice: %s" % [finding["code"] for finding in findings]
    return None


def step_time(command, environment):
    status, said, errors = run(command, environment)
    if status:
        sys.exit("status %d\n%s" % (status, errors))
    return next(float(line.split()[1]) for line in said.splitlines() if line.startswith("step "))


def measure(program, way, environment, pairs):
    options, more, _ = WAYS[way]
    ratios = []
    for pair in range(pairs):
        took = {}
        for watched in (False, True) if pair % 2 else (True, False):
            with tempfile.TemporaryDirectory() as scratch:
                front = [program, "run", "--quiet", "--run-dir", os.path.join(scratch, "run")] + options + ["--"]
                command = (front if watched else []) + torchrun("none")
                took[watched] = step_time(command, dict(environment, **more) if watched else environment)
        ratios.append(took[True] / took[False])
    ratios.sort()
    return "a step takes %.4f of its time (%.4f to %.4f, %d pairs)" % (
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        pairs,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS))
    parser.add_argument("--faults", nargs="*", choices=list(HOOKS))
    parser.add_argument("--jobs", type=int, default=1, help="jobs that run beside each other while none is timed")
    parser.add_argument("--keep", metavar="FOLDER", help="keep run directories, reports and outputs in a new folder")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of healthy jobs that are timed; 0: none")
    parser.add_argument("--program", default=os.path.join(ROOT, "target", "release", "ddp-doctor"))
    options = parser.parse_args()
    if options.backend == "nccl" and not has_gpu():
        print("skipped: this machine has no NVIDIA GPU")
        return
    if shutil.which(options.program) is None:
        sys.exit("%s is missing; build it first: cargo build --release --workspace" % options.program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DDP_DOCTOR")}
    environment.update(OMP_NUM_THREADS="1", GPU_TEST_BACKEND=options.backend)
    ways = options.ways or (list(WAYS) if options.backend == "nccl" else ["hooks"])
    cases = [(way, fault) for way in ways for fault in options.faults or HOOKS]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:

        def wrong(case):
            way, fault = case
            folder = os.path.join(options.keep or scratch, "%s-%s" % case)
            try:
                return check(options.program, way, fault, environment, folder)
            except Exception as error:  # The other cases are worth running.
                return repr(error)

        for (way, fault), said in zip(cases, pool.map(wrong, cases)):
            failed += said is not None
            print("%-10s %-8s %s" % (way, fault, said or "ok"), flush=True)
    for way in ways if options.pairs else []:
        print("%-10s %s" % (way, measure(options.program, way, environment, options.pairs)), flush=True)
    if failed:
        sys.exit("%d failed" % failed)


if __name__ == "__main__":
    main()
