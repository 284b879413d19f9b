"""Measures what ddp-doctor adds to a real DDP job of two ranks: time per step, memory per rank.

There are two methods, which answer different questions:

blocks  One job under `ddp-doctor run`, in which capture is switched off and on for alternating blocks
        of steps: the cost of capture in the rank, from blocks that are milliseconds apart. Everything
        that capture runs in a step is switched; the reader beside the job is not.
runs    Whole jobs with and without `ddp-doctor run`, alternating: the total cost, including memory, but
        with the noise of a machine that changes from minute to minute.

    python benches/capture/job.py                       # both
    python benches/capture/job.py blocks --blocks 400 --batch 64
    python benches/capture/job.py runs --pairs 4

Needs PyTorch >= 2.14 and the release build.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import built, interval, machine  # noqa: E402

LAYERS, WIDTH = 8, 1024


def rank(options):
    """One rank of the job; writes what it measured to `options.rank`.<rank>."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(options.batch, WIDTH)

    def step():
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        return time.perf_counter() - begin

    for _ in range(5):
        step()
    result = {}
    if options.blocks:
        switch = Switch(torch, dist)
        chance = random.Random(0)  # the same on every rank, so that they switch together
        pairs = []
        for _ in range(options.blocks):
            took = [0.0, 0.0]
            for on in chance.sample((0, 1), 2):
                switch(on)
                step()  # synchronizes the ranks
                took[on] = statistics.mean(step() for _ in range(options.steps))
            pairs.append(took)
        result["pairs"] = pairs
    else:
        result["step"] = statistics.median(step() for _ in range(options.steps))
    with open("/proc/self/smaps_rollup") as file:
        memory = {line.split(":")[0]: int(line.split()[1]) for line in file if " kB" in line}
    result.update(rss=memory["Rss"], pss=memory["Pss"])
    with open("%s.%d" % (options.rank, dist.get_rank()), "w") as file:
        json.dump(result, file)
    dist.destroy_process_group()


class Switch:
    """Switches everything that capture runs in a step off and on."""

    def __init__(self, torch, dist):
        from ddp_doctor._c10d import _calls, _groups, _hooks

        self.hooks = _hooks
        self.group = dist.group.WORLD
        self.made = _hooks.make(_groups._groups[_groups.name_of(self.group)])
        ddp = torch.nn.parallel.DistributedDataParallel
        graph = torch.autograd.graph
        self.replaced = [
            (dist.Work, "wait", dist.Work.wait, _calls._original_wait),
            (ddp, "forward", ddp.forward, ddp.forward.__wrapped__),
        ]
        for module in (torch.autograd, graph):
            function = getattr(module, "_engine_run_backward", None)
            if hasattr(function, "__wrapped__"):
                self.replaced.append((module, "_engine_run_backward", function, function.__wrapped__))
        self.on = True

    def __call__(self, on):
        if bool(on) == self.on:
            return
        self.on = bool(on)
        for owner, name, ours, plain in self.replaced:
            setattr(owner, name, ours if on else plain)
        if on:
            self.group.register_pre_hook(self.hooks.HOOK_ID, self.made[0])
            self.group.register_post_hook(self.hooks.HOOK_ID, self.made[1])
        else:
            self.group.unregister_pre_hook(self.hooks.HOOK_ID)
            self.group.unregister_post_hook(self.hooks.HOOK_ID)


def job(watched, *arguments):
    """Runs the job and returns the measurements of its ranks."""
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "result")
        command = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--standalone", "--nproc-per-node", "2"]
        command += [os.path.abspath(__file__), "runs", "--rank", out] + [str(argument) for argument in arguments]
        if watched:
            command = [built("ddp-doctor"), "run", "--run-dir", os.path.join(scratch, "run"), "-q", "--"] + command
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        subprocess.run(command, check=True, env=environment, cwd=scratch)
        results = []
        for number in range(2):
            with open("%s.%d" % (out, number)) as file:
                results.append(json.load(file))
        return results


def blocks(options):
    results = job(True, "--blocks", options.blocks, "--steps", 5, "--batch", options.batch)
    pairs = [pair for result in results for pair in result["pairs"]]
    off = statistics.median(pair[0] for pair in pairs)
    ratio = interval([pair[1] / pair[0] for pair in pairs])
    added = interval([(pair[1] - pair[0]) * 1e6 for pair in pairs])
    print("blocks: a step of %.2f ms, %d pairs of blocks of 5 steps on each rank" % (off * 1e3, options.blocks))
    print("    ratio %.5f (95 %%: %.5f to %.5f)" % ratio)
    print("    adds %.1f us (95 %%: %.1f to %.1f)" % added)


def runs(options):
    plain, watched = [], []
    for pair in range(options.pairs):
        for kind in (plain, watched) if pair % 2 else (watched, plain):
            ranks = job(kind is watched, "--steps", options.steps, "--batch", options.batch, "--blocks", 0)
            kind.append({key: statistics.mean(one[key] for one in ranks) for key in ranks[0]})
    print("runs: %d pairs of jobs of %d steps" % (options.pairs, options.steps))
    for key, unit, scale in (("step", "ms a step", 1e3), ("rss", "MiB resident", 1 / 1024), ("pss", "MiB proportional", 1 / 1024)):
        without = [one[key] * scale for one in plain]
        with_us = [one[key] * scale for one in watched]
        added = interval([a - b for a, b in zip(with_us, without)])
        ratio = interval([a / b for a, b in zip(with_us, without)])
        print(
            "    %-18s %9.3f without, %9.3f with: adds %+.3f (95 %%: %+.3f to %+.3f), ratio %.4f (%.4f to %.4f)"
            % ((unit, statistics.median(without), statistics.median(with_us)) + added + ratio)
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", nargs="*", choices=("blocks", "runs", []))
    parser.add_argument("--blocks", type=int, default=300, help="pairs of blocks")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of runs")
    parser.add_argument("--steps", type=int, default=100, help="steps of a run")
    parser.add_argument("--batch", type=int, default=32, help="makes a step longer or shorter")
    parser.add_argument("--quick", action="store_true", help="few pairs: a smoke test without meaningful results")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return rank(options)
    if options.quick:
        options.blocks, options.pairs, options.steps = 10, 2, 20
    print(machine())
    for way in options.way or ("blocks", "runs"):
        {"blocks": blocks, "runs": runs}[way](options)


if __name__ == "__main__":
    main()
