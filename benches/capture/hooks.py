"""Measures what capture adds to one collective called from Python, in a job of one rank.

Every variant runs in its own process; all start at once, and all but one sleep. In every round each
variant runs one short block of the same calls, in random order. The result is the median of the
differences to the baseline's block of the same round, with its 95 % interval, and the median ratio.
Separate processes also allow variants that cannot be switched within a process, such as PyTorch's
Flight Recorder. Since processes differ by about a microsecond, several sets of them are measured.

All run on one CPU: with two, the time in which Gloo's thread wakes up on the other one varies by more
than capture costs.

    python benches/capture/hooks.py
    python benches/capture/hooks.py --sets 1 --rounds 20 --calls all_reduce
    python benches/capture/hooks.py --backend nccl                  on a GPU: the time until a call returns
    python benches/capture/hooks.py --against ../earlier            also another checkout, with its release build
    python benches/capture/hooks.py --instructions --calls "DDP step"   counts instructions with valgrind

Needs the release build. PyTorch before 2.14 has no hooks, and calls are intercepted.
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
import warnings
from importlib.metadata import version

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import ROOT, built, interval, machine  # noqa: E402

# Calls in a block. WARM_UP is the share of them run before the block, to fill the caches.
BLOCK = {"all_reduce": 300, "broadcast": 300, "all_reduce 20 frames deep": 300, "all_reduce 20 frames deep in a package": 300, "call from C++": 150, "DDP step": 60}
DEFAULT_BLOCK = 100
WARM_UP = 0.2

BASE = "without us"
HOOKS = tuple(int(part) for part in version("torch").split(".")[:2]) >= (2, 14)
VARIANTS = [BASE, "ours", "ours, in Python", "Flight Recorder"]
if HOOKS:
    VARIANTS += ["two empty hooks", "ours, intercepted", "ours, intercepted in Python"]
EARLIER = "ours, earlier"
LISTS = (1, 16, 1024)
# Calls of which the instructions are counted, which valgrind makes slow.
COUNTED = 200


class Variant:
    """A process that runs blocks on request."""

    def __init__(self, name, backend, scratch, root=ROOT, under=()):
        boxes = os.path.join(scratch, "boxes")
        os.makedirs(boxes, exist_ok=True)
        environment = dict(os.environ, DDP_DOCTOR_JOB="bench", DDP_DOCTOR_BOX_DIR=boxes, OMP_NUM_THREADS="1")
        earlier = name == EARLIER
        library = "libddp_doctor.so"
        environment["DDP_DOCTOR_LIBRARY"] = os.path.join(root, "target/release", library) if earlier else built(library)
        environment["TORCH_FR_BUFFER_SIZE"] = "2000" if name == "Flight Recorder" else "0"
        environment["DDP_DOCTOR_NATIVE_HOOKS"] = "0" if name.endswith("in Python") else "1"
        environment["DDP_DOCTOR_CAPTURE"] = "interception" if name.startswith("ours, intercepted") else ""
        environment.pop("PYTHONPATH", None)
        command = [*under, sys.executable, os.path.abspath(__file__), "--variant", name, "--backend", backend]
        if earlier:
            command += ["--root", root]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True
        )

    def ask(self, what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a variant ended early")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def serve(name, backend, root):
    """Runs one variant: answers requests on standard input until end of file."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Gloo prints to standard output
    ours = name.startswith("ours")
    if ours:
        sys.path.insert(0, os.path.join(root, "agent", "python"))
        import ddp_doctor

        ddp_doctor.enable()
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")  # PyTorch warns of deprecated functions
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(0)
        torch.set_default_device("cuda")
    settle = torch.cuda.synchronize if backend == "nccl" else lambda: None
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group(backend, init_method="file://" + store + "/store", rank=0, world_size=1)
        if name == "two empty hooks":
            nothing = lambda args: None  # noqa: E731
            dist.group.WORLD.register_pre_hook(1, nothing)
            dist.group.WORLD.register_post_hook(1, nothing)
        calls = programs(torch, dist)
        for line in sys.stdin:
            request = json.loads(line)
            if request == "warm":
                answer = warm(torch, dist)
            elif request[2] == "instructions":
                answer = count_instructions(calls[request[0]], request[1])
            else:
                call, count = calls[request[0]], request[1]
                now = time.thread_time_ns if request[2] == "cpu" else time.perf_counter_ns
                for _ in range(int(count * WARM_UP)):
                    call()
                settle()
                begin = now()
                for _ in range(count):
                    call()
                answer = (now() - begin) / count / 1000
                settle()
            print(json.dumps(answer), file=answers, flush=True)
        dist.destroy_process_group()


def count_instructions(call, count):
    """Makes calls while callgrind counts the instructions of this process."""
    for _ in range(count // 4):
        call()
    control = ["callgrind_control", "-i", "on", str(os.getpid())]
    subprocess.run(control, check=True, stdout=subprocess.DEVNULL)
    for _ in range(count):
        call()
    control[2] = "off"
    subprocess.run(control, check=True, stdout=subprocess.DEVNULL)


def programs(torch, dist):
    """The measured calls, by name."""
    tensor = torch.ones(8)

    def deep():
        def down(n):
            return down(n - 1) if n else dist.all_reduce(tensor)

        down(20)

    # Code of an installed package, which is passed over.
    package = {"all_reduce": dist.all_reduce, "tensor": tensor}
    through = "def through(n): return through(n - 1) if n else all_reduce(tensor)"
    exec(compile(through, "/lib/site-packages/trainer/loop.py", "exec"), package)

    # A call from C++ below DDP's code, as those for its buffers and, with another operation, its buckets.
    below = {"broadcast": dist._broadcast_coalesced, "group": dist.group.WORLD, "tensors": [torch.ones(8)]}
    send = "def send(): broadcast(group, tensors, 1 << 20, 0)"
    exec(compile(send, sys.modules["torch.nn.parallel.distributed"].__file__, "exec"), below)

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    data = torch.ones(2, 4)

    def step():
        model(data).sum().backward()

    found = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "all_reduce 20 frames deep": deep,
        "all_reduce 20 frames deep in a package": lambda: package["through"](20),
        "call from C++": below["send"],
        "DDP step": step,
    }
    for length in LISTS:
        tensors = [torch.ones(1) for _ in range(length)]
        found["all_reduce_coalesced of %d" % length] = lambda tensors=tensors: dist.all_reduce_coalesced(tensors)
    for _ in range(3):
        step()
    return found


def warm(torch, dist):
    """Cost of the two hooks and the wait alone, repeated inside a real call with warm caches, in µs.

    In Python: the extension sees the frames that call it, which cannot be repeated.
    """
    import timeit

    from ddp_doctor._c10d import _calls, _groups, _hooks

    group = dist.group.WORLD
    before, after = _hooks.make(_groups._groups[_groups.name_of(group)])
    group.unregister_pre_hook(_hooks.HOOK_ID)
    group.unregister_post_hook(_hooks.HOOK_ID)
    frame_of = _hooks._getframe
    wait = _calls.wrap_wait(lambda self: True)

    def cost(call, n=2000):
        return min(timeit.repeat(call, number=n, repeat=7)) / n * 1e6

    def measure(call):
        total = []

        def pre(args):
            frame = frame_of(1)
            _hooks._getframe = lambda depth: frame
            before(args)
            (last,) = _calls._last.values()

            def once():
                last[5] = False  # the value that the second hook leaves
                before(args)

            total.append(cost(once))
            _hooks._getframe = frame_of

        def post(args):
            (last,) = _calls._last.values()
            again = list(last)

            def once():
                last[:] = again
                after(args)

            total.append(cost(once))
            _calls._last.clear()

        group.register_pre_hook(1, pre)
        group.register_post_hook(1, post)
        call()
        group.unregister_pre_hook(1)
        group.unregister_post_hook(1)
        thread = _calls.get_ident()

        def waits():
            _calls._last[thread] = [0, 1, waits.__code__, 0, True, False, 1]
            wait(None)

        total.append(cost(waits))
        _calls._last.clear()
        return sum(total)

    _calls._last.clear()
    tensor = torch.ones(8)
    costs = {
        "all_reduce": measure(lambda: dist.all_reduce(tensor)),
        "broadcast": measure(lambda: dist.broadcast(tensor, 0)),
    }
    for length in LISTS:
        tensors = [torch.ones(1) for _ in range(length)]
        costs["all_reduce_coalesced of %d" % length] = measure(lambda: dist.all_reduce_coalesced(tensors))
    group.register_pre_hook(_hooks.HOOK_ID, before)
    group.register_post_hook(_hooks.HOOK_ID, after)
    return costs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=3, help="how often all processes are started")
    parser.add_argument("--rounds", type=int, default=60, help="blocks in each process")
    parser.add_argument("--calls", nargs="*", help="only these calls")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time of the calling thread, which other processes affect less",
    )
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--quick", action="store_true", help="few rounds: a smoke test without meaningful results")
    parser.add_argument("--against", metavar="DIR", help="also measure the capture of another checkout")
    parser.add_argument("--instructions", action="store_true", help="count instructions (valgrind) instead of time")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--root", default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        return serve(options.variant, options.backend, options.root)
    if options.against:
        VARIANTS.insert(1, EARLIER)
    rounds = 5 if options.quick else options.rounds
    calls = ["all_reduce", "broadcast", "all_reduce 20 frames deep", "all_reduce 20 frames deep in a package", "call from C++", "DDP step"]
    calls += ["all_reduce_coalesced of %d" % length for length in LISTS]

    if options.backend == "gloo":
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    print(machine(), flush=True)
    calls = options.calls or calls
    if options.instructions:
        return tell_instructions(calls, options)
    took = {call: {name: [] for name in VARIANTS} for call in calls}
    warm_costs = {}
    for _ in range(1 if options.quick else options.sets):
        with tempfile.TemporaryDirectory() as scratch:
            variants = {name: Variant(name, options.backend, scratch, options.against or ROOT) for name in VARIANTS}
            for call in calls:
                measure(variants, [call, BLOCK.get(call, DEFAULT_BLOCK), options.clock], rounds, took[call])
            if HOOKS:
                warm_costs = variants["ours, in Python"].ask("warm")
            for variant in variants.values():
                variant.end()
    for call in calls:
        tell(call, took[call])
    if warm_costs:
        print("\nthe hooks and the wait alone, in Python, warm:")
        for call, micros in warm_costs.items():
            print("    %-28s %.2f us" % (call, micros))


def tell_instructions(calls, options):
    """Counts the instructions of a call in every variant, each in a process of its own."""
    for call in calls:
        base = None
        for name in VARIANTS:
            with tempfile.TemporaryDirectory() as scratch:
                out = os.path.join(scratch, "callgrind.out")
                under = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=" + out]
                variant = Variant(name, options.backend, scratch, options.against or ROOT, under)
                variant.ask([call, COUNTED, "instructions"])
                variant.end()
                with open(out) as file:
                    total = next(int(line.split()[1]) for line in file if line.startswith("totals:"))
            count = total / COUNTED
            base = base or count
            print("%s: %-28s %8.0f instructions, %+8.0f" % (call, name, count, count - base), flush=True)


def measure(variants, request, rounds, took):
    """Runs `rounds` blocks in every variant and appends their times to `took`."""
    order = list(variants)
    for turn in range(rounds + 1):
        random.shuffle(order)
        for name in order:
            micros = variants[name].ask(request)
            if turn:  # the first block fills caches
                took[name].append(micros)


def tell(call, took):
    base = took[BASE]
    count = BLOCK.get(call, DEFAULT_BLOCK)
    print("\n%s: %.1f us without capture (median of %d blocks of %d)" % (call, statistics.median(base), len(base), count))
    for name in VARIANTS[1:]:
        added = interval([a - b for a, b in zip(took[name], base)])
        ratio = statistics.median(a / b for a, b in zip(took[name], base))
        least = min(took[name]) - min(base)
        print("    %-28s adds %6.2f us (95 %%: %.2f to %.2f), ratio %.3f, minima %+.2f us" % ((name,) + added + (ratio, least)))
    versus = interval([a - b for a, b in zip(took["ours"], took["Flight Recorder"])])
    print("    %-28s      %+6.2f us (95 %%: %+.2f to %+.2f)" % (("ddp-doctor against it",) + versus))


if __name__ == "__main__":
    main()
