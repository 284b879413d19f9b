"""What the capture adds to one collective: a one-rank Gloo all_reduce, paired.

Variants run interleaved in one process, in short blocks, so that each block of a variant has a
neighbour of the base line; what is reported is the median of the paired differences. The Flight
Recorder is switched by environment, hence by a process of its own, and compared between processes.

    python benches/hook_cost.py            # all of it
    python benches/hook_cost.py --rounds 50

Needs PyTorch >= 2.14 and the library (DDP_DOCTOR_LIBRARY, else the workspace's target folder).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)


def library():
    named = os.environ.get("DDP_DOCTOR_LIBRARY")
    if named:
        return named
    root = os.path.dirname(os.path.dirname(PACKAGE))
    for profile in ("release", "debug"):
        file = os.path.join(root, "target", profile, "libddp_doctor.so")
        if os.path.exists(file):
            return file
    sys.exit("build the library first: cargo build --release -p ddp-doctor-capi")


def machine():
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return "%s, %d CPUs, %s, Python %s" % (model, os.cpu_count(), platform.system(), platform.python_version())


def child(rounds, calls):
    """Measures in this process; prints one JSON object."""
    sys.path.insert(0, PACKAGE)
    import ddp_doctor

    ddp_doctor.enable()
    import torch
    import torch.distributed as dist
    from ddp_doctor import _groups, _hooks

    torch.set_num_threads(1)
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method="file://" + store.name + ".store", rank=0, world_size=1)
        pg = dist.group.WORLD
        group = _groups._groups[_groups.name_of(pg)]
        ours = _hooks.make(group)
        wrapped = dist.Work.wait
        plain = wrapped.__closure__[[c for c in wrapped.__code__.co_freevars].index("original")].cell_contents

        def off():
            pg.unregister_pre_hook(_hooks.HOOK_ID)
            pg.unregister_post_hook(_hooks.HOOK_ID)
            dist.Work.wait = plain

        def on(before, after, wait):
            pg.register_pre_hook(_hooks.HOOK_ID, before)
            pg.register_post_hook(_hooks.HOOK_ID, after)
            dist.Work.wait = wait

        off()
        tensor = torch.ones(8)

        def block(call):
            begin = time.perf_counter_ns()
            for _ in range(calls):
                call()
            return (time.perf_counter_ns() - begin) / calls / 1000

        def paired(call, before, after, wait):
            differences, bases = [], []
            for turn in range(rounds + 2):
                order = (0, 1) if turn % 2 else (1, 0)
                took = [0.0, 0.0]
                for variant in order:
                    if variant:
                        on(before, after, wait)
                    took[variant] = block(call)
                    if variant:
                        off()
                if turn >= 2:
                    differences.append(took[1] - took[0])
                    bases.append(took[0])
            return statistics.median(differences), statistics.median(bases)

        def all_reduce():
            dist.all_reduce(tensor)

        def deep():
            def down(n):
                return down(n - 1) if n else dist.all_reduce(tensor)

            down(20)

        result = {}
        nothing = lambda args: None  # noqa: E731
        result["empty hooks"] = paired(all_reduce, nothing, nothing, plain)
        result["ours"] = paired(all_reduce, *ours, wrapped)
        result["ours, called 20 frames deep"] = paired(deep, *ours, wrapped)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        data = torch.ones(2, 4)

        def step():
            model(data).sum().backward()

        for _ in range(3):
            step()
        result["ours, one DDP step (1 bucket)"] = paired(step, *ours, wrapped)
        for length in (1, 16, 1024):
            tensors = [torch.ones(1) for _ in range(length)]
            result["ours, all_reduce_coalesced of %d" % length] = paired(
                lambda: dist.all_reduce_coalesced(tensors), *ours, wrapped
            )
        result.update(warm(dist, pg, tensor, _hooks, group))
        print(json.dumps(result))
        sys.stdout.flush()
        dist.destroy_process_group()


def warm(dist, pg, tensor, hooks, group):
    """The hooks and the wait alone, repeated inside a real call: what they cost with warm caches."""
    import timeit

    before, after = hooks.make(group)
    frame_of = hooks._getframe
    wait = hooks.wrap_wait(lambda self: True)
    costs = {}

    def cost(call, n=2000):
        return min(timeit.repeat(call, number=n, repeat=7)) / n * 1e6

    def measure(name, call):
        total = []

        def pre(args):
            frame = frame_of(1)
            hooks._getframe = lambda depth: frame
            before(args)
            (last,) = hooks._last.values()

            def once():
                last[5] = False  # as the second hook leaves it
                before(args)

            total.append(cost(once))
            hooks._getframe = frame_of

        def post(args):
            (last,) = hooks._last.values()
            again = list(last)

            def once():
                last[:] = again
                after(args)

            total.append(cost(once))
            hooks._last.clear()

        pg.register_pre_hook(1, pre)
        pg.register_post_hook(1, post)
        call()
        pg.unregister_pre_hook(1)
        pg.unregister_post_hook(1)
        thread = hooks.get_ident()

        def waits():
            hooks._last[thread] = [hooks.NO_CALL, 1, waits.__code__, 0, True, False]
            wait(None)

        total.append(cost(waits))
        hooks._last.clear()
        costs["warm, ours, " + name] = (sum(total), None)

    hooks._last.clear()
    measure("all_reduce", lambda: dist.all_reduce(tensor))
    measure("broadcast", lambda: dist.broadcast(tensor, 0))
    for length in (1, 16, 1024):
        import torch

        tensors = [torch.ones(1) for _ in range(length)]
        measure("all_reduce_coalesced of %d" % length, lambda: dist.all_reduce_coalesced(tensors))
    return costs


def recorder_child(rounds, calls):
    """Median cost of a plain all_reduce, without us, for the Flight Recorder's comparison."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method="file://" + store.name + ".store", rank=0, world_size=1)
        tensor = torch.ones(8)
        took = []
        for turn in range(rounds + 2):
            begin = time.perf_counter_ns()
            for _ in range(calls):
                dist.all_reduce(tensor)
            took.append((time.perf_counter_ns() - begin) / calls / 1000)
        print(json.dumps(statistics.median(took[2:])))
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--child", choices=("ours", "recorder"))
    options = parser.parse_args()
    if options.child == "ours":
        return child(options.rounds, options.calls)
    if options.child == "recorder":
        return recorder_child(options.rounds, options.calls)

    def run(kind, recorder):
        with tempfile.TemporaryDirectory() as boxes:
            environment = dict(os.environ, DDP_DOCTOR_LIBRARY=library(), DDP_DOCTOR_JOB="bench", DDP_DOCTOR_BOX_DIR=boxes)
            environment.pop("PYTHONPATH", None)
            environment["TORCH_FR_BUFFER_SIZE"] = recorder
            command = [sys.executable, os.path.abspath(__file__), "--child", kind]
            command += ["--rounds", str(options.rounds), "--calls", str(options.calls)]
            out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, universal_newlines=True)
            return json.loads(out.stdout.strip().splitlines()[-1])

    print(machine())
    print("%-40s %10s %10s %8s" % ("", "adds (us)", "base (us)", "ratio"))
    for name, (added, base) in run("ours", "0").items():
        if base is None:
            print("%-40s %10.2f" % (name, added))
        else:
            print("%-40s %10.2f %10.2f %8.3f" % (name, added, base, (base + added) / base))
    pairs = [(run("recorder", "0"), run("recorder", "2000")) for _ in range(5)]
    added = statistics.median(on - off for off, on in pairs)
    base = statistics.median(off for off, on in pairs)
    print("%-40s %10.2f %10.2f %8.3f" % ("Flight Recorder (processes, not blocks)", added, base, (base + added) / base))


if __name__ == "__main__":
    main()
