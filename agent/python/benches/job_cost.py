"""What the capture adds to a real DDP job: time of a step, resident memory of a rank.

A small model is trained with torchrun on two ranks, with and without `ddp-doctor run`, in turns, so
that each run has a neighbour of the other kind. Reported are medians of the runs' medians, their
ratio, and how far the paired ratios spread.

    python benches/job_cost.py            # ten pairs
    python benches/job_cost.py --pairs 4

Needs PyTorch >= 2.14 and the release build (`cargo build --release --workspace`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
PROGRAM = os.path.join(ROOT, "target", "release", "ddp-doctor")


def job(out, steps):
    """One rank; writes its median step time (s) and its memory (KiB) to `out`.<rank>."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(64, 256)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    with open("/proc/self/smaps_rollup") as file:
        memory = {line.split(":")[0]: int(line.split()[1]) for line in file if " kB" in line}
    result = {"step": statistics.median(times[steps // 5 :]), "rss": memory["Rss"], "pss": memory["Pss"]}
    with open("%s.%d" % (out, dist.get_rank()), "w") as file:
        json.dump(result, file)
    dist.destroy_process_group()


def run(watched, steps):
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "result")
        torchrun = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--standalone"]
        command = torchrun + ["--nproc-per-node", "2", os.path.abspath(__file__), "--job", out]
        command += ["--steps", str(steps)]
        if watched:
            command = [PROGRAM, "run", "--run-dir", os.path.join(scratch, "run"), "-q", "--"] + command
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        subprocess.run(command, check=True, env=environment, cwd=scratch)
        results = []
        for rank in range(2):
            with open("%s.%d" % (out, rank)) as file:
                results.append(json.load(file))
        return {key: statistics.mean(result[key] for result in results) for key in results[0]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return job(options.job, options.steps)
    sys.path.insert(0, HERE)
    from hook_cost import machine

    plain, watched = [], []
    for pair in range(options.pairs):
        for kind in (plain, watched) if pair % 2 else (watched, plain):
            kind.append(run(kind is watched, options.steps))
    print(machine())
    for key, unit, scale in (("step", "ms a step", 1e3), ("rss", "MiB resident", 1 / 1024), ("pss", "MiB proportional", 1 / 1024)):
        without = [one[key] for one in plain]
        with_us = [one[key] for one in watched]
        ratios = sorted(a / b for a, b in zip(with_us, without))
        print(
            "%-18s without %9.3f   with %9.3f   difference %+8.3f   ratio %.4f (median of pairs %.4f, %.4f … %.4f)"
            % (
                unit,
                statistics.median(without) * scale,
                statistics.median(with_us) * scale,
                (statistics.median(with_us) - statistics.median(without)) * scale,
                statistics.median(with_us) / statistics.median(without),
                statistics.median(ratios),
                ratios[0],
                ratios[-1],
            )
        )


if __name__ == "__main__":
    main()
