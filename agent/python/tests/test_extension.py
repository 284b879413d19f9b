"""The extension and the Python code that it replaces, which have to record the same."""

import os
import re
import shutil
import tempfile
import textwrap
import unittest

from support import job, library

EXTENSION = "libddp_doctor_python.so"
HEAD = """
import gc, os, sys, threading, weakref
from datetime import timedelta
import torch, torch.distributed as dist
from ddp_doctor._c10d import _extension
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
# Exceptions are known by their addresses, which would otherwise be reused.
kept = []
assert (_extension.loaded is None) == (os.environ.get("DDP_DOCTOR_NATIVE_HOOKS") == "0")
"""
# Calls of two ranks. Each block runs twice, since the first call at a line is left to Python.
CALLS = {
    "collectives": """
t, many = torch.ones(4, 2), [torch.ones(4, 2) for _ in range(world)]
dist.all_reduce(t)
dist.all_reduce(t.to(torch.int64), op=dist.ReduceOp.MAX)
dist.all_reduce(t.bfloat16(), dist.ReduceOp.MIN, None, False)
dist.all_reduce(tensor=t, op=dist.ReduceOp(dist.ReduceOp.PRODUCT))
dist.broadcast(t, 1)
dist.broadcast(t, src=0)
dist.reduce(t, 1, op=dist.ReduceOp.PRODUCT)
dist.barrier()
dist.all_gather(many, t)
dist.all_gather_into_tensor(torch.ones(4 * world, 2), t)
dist.gather(t, many if rank == 0 else None, 0)
dist.scatter(t, many if rank == 1 else None, 1)
try:
    dist.reduce_scatter_tensor(torch.ones(2, 2), t, dist.ReduceOp.MAX)
    dist.reduce_scatter(torch.ones(4, 2), many)
except RuntimeError:  # not on Gloo before 2.9
    pass
dist.all_to_all_single(torch.ones(4, 2), t)
dist.all_to_all_single(torch.ones(4, 2), t, [2, 2], [2, 2])
""",
    "shapes": """
for shape in ((), (0,), (1,) * 10, (1,) * 11, (3, 1, 2)):
    dist.all_reduce(torch.ones(shape))
    dist.broadcast(torch.ones(shape), 0)
for dtype in (torch.uint8, torch.int64, torch.float64, torch.float16):
    dist.broadcast(torch.zeros(2).to(dtype), 0)
dist.all_reduce(torch.ones(2, dtype=torch.complex64))
dist.all_reduce(torch.ones(4, 4).t()[1])
""",
    "asynchronous": """
t = torch.ones(3)
works = [dist.all_reduce(t, async_op=True), dist.broadcast(t, 0, async_op=True), dist.barrier(async_op=True)]
for work in works:
    work.wait()
work = dist.all_reduce(t, async_op=True)
work.wait(timedelta(seconds=30))
work = dist.all_reduce(t, async_op=1)
while not work.is_completed():
    pass
work = None
""",
    "groups": """
pair, alone = dist.new_group([1, 0]), dist.new_group([0])
t = torch.ones(3)
dist.all_reduce(t, group=pair)
dist.broadcast(t, 0, group=pair)
if rank == 0:
    dist.all_reduce(t, group=alone)
dist.barrier(pair)
pair.allreduce([t]).wait()
pair.broadcast(t, 0).wait()
dist.destroy_process_group(pair)
""",
    "messages": """
t = torch.ones(3)
for tag in (0, 7):
    dist.send(t, 1, tag=tag) if rank == 0 else dist.recv(t, 0, tag=tag)
    (dist.isend(t, 1) if rank == 0 else dist.irecv(t, 0)).wait()
dist.send(t, 1) if rank == 0 else dist.recv(t)
both = [dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, torch.ones(3), 1 - rank)]
for work in dist.batch_isend_irecv(both):
    work.wait()
def send():
    return dist.isend(t, 1)
def recv():
    return dist.irecv(t, 0)
(send() if rank == 0 else recv()).wait()
""",
    "lists": """
ts = [torch.ones(2), torch.ones(5)]
dist.all_reduce_coalesced(ts)
with dist._coalescing_manager():
    dist.all_reduce(ts[0])
    dist.all_reduce(ts[1])
""",
    "objects": """
dist.broadcast_object_list([{"a": 1}], 0)
dist.all_gather_object([None] * world, "x" * rank)
dist.monitored_barrier()
""",
    "tensors": """
class Ours(torch.Tensor):
    pass
dist.all_reduce(torch.ones(3).as_subclass(Ours))
dist.broadcast(torch.ones(3).as_subclass(Ours), 0)
dist.all_reduce(torch.nn.Parameter(torch.ones(3)).data)
with torch.no_grad():
    dist.broadcast(torch.nn.Parameter(torch.ones(3)), 0)
with torch.inference_mode():
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(3), 0)
""",
    "exceptions": """
t = torch.ones(3)
for wrong in (lambda: dist.all_reduce("x"), lambda: dist.broadcast(t, 9), lambda: dist.all_reduce(t, "sum")):
    try:
        wrong()
    except Exception as error:
        kept.append(error)
        dist.all_reduce(t)
try:
    raise ValueError("in flight %d" % turn)
except ValueError as error:
    kept.append(error)
    dist.all_reduce(t)
    dist.barrier()
pair = dist.new_group([0, 1], timeout=timedelta(milliseconds=100))
try:
    if rank == 0:
        dist.recv(t, 1, group=pair)
except RuntimeError as error:
    kept.append(error)
dist.barrier()
try:
    dist.all_reduce(t, async_op=True).wait("soon")
except TypeError as error:
    kept.append(error)
""",
    "threads": """
t = torch.ones(3)
def calls():
    dist.all_reduce(t)
    dist.broadcast(t, 0, async_op=True).wait()
for _ in range(3):
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
""",
    "packages": """
package = {}
fit = "def fit(depth, call): return fit(depth - 1, call) if depth else _run(call)"
run = "def _run(call): return call()"
exec(compile(fit + chr(10) + run, "/venv/lib/python3/site-packages/trainer/loop.py", "exec"), package)
fit = package["fit"]
def all_reduce():
    dist.all_reduce(torch.ones(3))
from functools import partial
for depth in (0, 1, 0, 3, 30, 70):
    fit(depth, all_reduce)
    fit(depth, partial(dist.all_reduce, torch.ones(3)))
    fit(depth, partial(dist.barrier, async_op=True)).wait()
    thread = threading.Thread(target=fit, args=(depth, dist.barrier))
    thread.start()
    thread.join()
""",
    "DDP": """
torch.manual_seed(turn)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
with model.no_sync():
    model(torch.ones(2, 4)).sum().backward()
""",
    "steps": """
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.rare, self.frozen = (torch.nn.Linear(4, 4) for _ in range(3))
        self.frozen.requires_grad_(False)
    def forward(self, x, rare=True, raises=False):
        if raises:
            raise ValueError("no forward %d" % turn)
        x = checkpoint(self.used, x["x"], use_reentrant=True) if isinstance(x, dict) else self.used(x)
        return self.rare(x) if rare else x
def fails(call, error):
    try:
        call()
    except error as raised:
        kept.append(raised)
    else:
        raise AssertionError(call)
DDP = torch.nn.parallel.DistributedDataParallel
plain, searching = DDP(Net().used), DDP(Net(), find_unused_parameters=True)
optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
x = torch.ones(2, 4)
for turn_of in range(4):
    plain(x if turn_of % 2 else torch.ones(2, 4)).sum().backward()
    optimizer.step()
    plain(input=x).sum().backward()
    with torch.no_grad():
        plain(x)
    searching(x, rare=turn_of < 2).sum().backward()
    searching.module.frozen.weight.grad = torch.ones(4, 4)
    plain.module(x).sum().backward()
for _ in range(2):
    DDP(Net())({"x": x.clone().requires_grad_()}).sum().backward()
fails(lambda: searching(x, raises=True), ValueError)
fails(lambda: plain(x).backward(), RuntimeError)
lacking = DDP(Net())
for rare in (True, False):
    lacking(x, rare).sum().backward()
fails(lambda: lacking(x), RuntimeError)
for _ in range(5):
    del plain.module.weight.grad, plain.module.bias.grad
    plain.module(x).sum().backward()
""",
    "functional": """
import torch.distributed._functional_collectives as functional
functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD).sum()
""",
    "worlds": """
dist.barrier()
dist.destroy_process_group()
store = "file://%s/store-%d" % (os.environ["DDP_DOCTOR_RUN_DIR"], turn)
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
dist.all_reduce(torch.ones(3))
""",
}
# Why time was spent.
BUCKETS = 3
RECORDED = "issued returned wait-begin wait-end splits unawaited exception group-destroyed step parameters spent".split()


def recorded(box):
    """The contents of the records, apart from times, processes, and the folder of the program."""
    threads, records = [], []
    for r in box.records:
        if r.kind not in RECORDED or r.kind == "spent" and r.code != BUCKETS:
            continue
        if r.thread not in threads:
            threads.append(r.thread)
        place = r.site and r.site[1:], r.callers and [caller[1:] for caller in r.callers], r.via
        shape = (r.dtype, r.shape, r.numel, r.tensors, r.sizes) if r.kind != "spent" else None
        what = r.kind, r.op, r.reduce_op, r.flags, r.group, r.seq, r.call, r.root, r.tag
        text = re.sub("0x[0-9a-f]+", "0x", r.text)
        records.append((*what, shape, place, threads.index(r.thread), r.step, text, r.code))
    return records


class Extension(unittest.TestCase):
    maxDiff = None

    def run_job(self, code, ranks=1, **changes):
        outcome = job(HEAD + code + "\nos._exit(0)\n", ranks, **changes)
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, [0] * ranks, "\n".join(outcome.outputs))
        self.assertEqual(len(outcome.boxes), ranks, outcome.outputs)
        return outcome

    def check_both_record_the_same(self, **changes):
        function = "def block(turn):\n%s\nblock(0)\nblock(1)"
        code = "\n".join(function % textwrap.indent(block.strip(), "    ") for block in CALLS.values())
        native = self.run_job(code, 2, DDP_DOCTOR_NATIVE_HOOKS="1", **changes)
        python = self.run_job(code, 2, DDP_DOCTOR_NATIVE_HOOKS="0", **changes)
        for rank in range(2):
            ours, reference = recorded(native.boxes[rank]), recorded(python.boxes[rank])
            for i, (one, other) in enumerate(zip(ours, reference)):
                self.assertEqual(one, other, "rank %d, record %d of %d" % (rank, i, len(reference)))
            self.assertEqual(len(ours), len(reference))
            self.assertGreater(len(ours), 300)

    def test_native_and_python_record_the_same(self):
        self.check_both_record_the_same()

    def test_native_and_python_record_the_same_under_interception(self):
        self.check_both_record_the_same(DDP_DOCTOR_CAPTURE="interception")

    def test_common_calls_are_recorded_natively(self):
        code = """
from ddp_doctor._c10d import _hooks
left = []
issue = _hooks.issue.__code__
def profile(frame, event, arg):
    if event == "call" and frame.f_code is issue:
        left.append(1)
t, many = torch.ones(3), [torch.ones(3)]
def calls():
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    dist.broadcast(t, 0)
    dist.barrier()
    dist.all_gather(many, t)
    dist.reduce(t, 0)
    dist.all_reduce(t, async_op=True).wait()
calls()
calls()
sys.setprofile(profile)
for _ in range(10):
    calls()
sys.setprofile(None)
assert not left, len(left)
"""
        self.run_job(code)
        self.run_job(code, DDP_DOCTOR_CAPTURE="interception")

    def test_steps_of_ddp_run_only_two_functions_of_the_package(self):
        code = """
import ddp_doctor
package, found = os.path.dirname(ddp_doctor.__file__), set()
def profile(frame, event, arg):
    if event == "call" and turn >= 10 and frame.f_code.co_filename.startswith(package):
        found.add(frame.f_code.co_name)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
paths = [eval("lambda: model(torch.ones(2, 4))") for _ in range(40)]
sys.setprofile(profile)  # from the start: a call under a profiler is another instruction than a specialized one
for turn in range(20):
    for path in paths:
        path().sum().backward()
        optimizer.step()
sys.setprofile(None)
found -= {"sample", "_collects"}  # at intervals
assert found == {"forward"}, found
"""
        self.run_job(code)
        self.run_job(code, DDP_DOCTOR_CAPTURE="interception")

    def run_steps_with_counted_conversions(self, last, first="", **changes):
        """Runs steps in which `converted` counts how often PyTorch converts the group or a tensor of a call from C++."""
        code = """
import torch, torch.distributed as dist
c10d, converted = torch._C._distributed_c10d, []
def counted(original):
    return lambda *args: converted.append(1) or original(*args)
if os.environ.get("DDP_DOCTOR_CAPTURE") != "interception" and hasattr(c10d, "PreHookArgs"):
    c10d.PreHookArgs.input_tensors = property(counted(c10d.PreHookArgs.input_tensors.__get__))
elif hasattr(c10d.ProcessGroup, "unbox"):
    c10d.ProcessGroup.unbox = staticmethod(counted(c10d.ProcessGroup.unbox))
else:  # before 2.4
    os._exit(0)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
def steps():
    del converted[:]
    for _ in range(10):
        model(torch.ones(2, 4)).sum().backward()
steps()
assert converted
"""
        outcome = job("import os\n%s\n%s\n%s\nos._exit(0)\n" % (first, code, last), **changes)
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)

    def test_known_objects_of_pytorch_are_not_converted(self):
        code = "steps()\nassert not converted, len(converted)"
        self.run_steps_with_counted_conversions(code)
        self.run_steps_with_counted_conversions(code, DDP_DOCTOR_CAPTURE="interception")

    def test_arguments_of_an_unknown_layout_are_converted(self):
        first = """
import torch
arguments = getattr(torch._C._distributed_c10d, "PreHookArgs", None)
if arguments is None:
    os._exit(0)
arguments.root = property(lambda self: 5)  # not what is in the place of the root
"""
        self.run_steps_with_counted_conversions("steps()\nassert len(converted) >= 10, len(converted)", first)

    def test_calls_through_packages_are_recorded_natively(self):
        code = """
from ddp_doctor import _sites
from ddp_doctor._c10d import _hooks
left = []
python = _hooks.issue.__code__, _sites.locate.__code__
def profile(frame, event, arg):
    if event == "call" and frame.f_code in python:
        left.append(frame.f_code.co_name)
package = {}
exec(compile("def through(depth):\\n    through(depth - 1) if depth else all_reduce(t)\\n", "/venv/site-packages/x/y.py", "exec"), package)
package.update(all_reduce=dist.all_reduce, t=torch.ones(3))
def calls():
    for depth in (0, 5, 20):
        package["through"](depth)
calls()
calls()
sys.setprofile(profile)
for _ in range(10):
    calls()
sys.setprofile(None)
assert not left, left
"""
        outcome = self.run_job(code)
        calls = [r for r in outcome.box.of("issued") if r.op == 1]
        self.assertEqual([len(r.via) for r in calls], [1, 6, 16] * 12)
        self.assertEqual({len({r.site for r in calls[at::3]}) for at in range(3)}, {1})
        self.run_job(code, DDP_DOCTOR_CAPTURE="interception")

    def test_native_hooks_keep_and_leak_nothing(self):
        code = """
t, value = torch.ones(3), dist.ReduceOp.MAX
def calls():
    dist.all_reduce(t, value)
    dist.broadcast(t, 0)
    dist.all_reduce(t, async_op=True).wait()
    dist.barrier()
def counts():
    gc.collect()
    seen = t, value, t.dtype, None, True, dist.group.WORLD, calls
    return [sys.getrefcount(it) for it in seen], len(gc.get_objects())
for _ in range(10):
    calls()
before, objects = counts()
for _ in range(1000):
    calls()
after, objects_after = counts()
for one, other in zip(before, after):
    assert abs(one - other) < 100, (before, after)
assert abs(objects - objects_after) < 100, (objects, objects_after)
data = weakref.ref(t)
del t
gc.collect()
assert data() is None
"""
        self.run_job(code)
        self.run_job(code, DDP_DOCTOR_CAPTURE="interception")

    def test_odd_arguments_do_not_raise(self):
        self.run_job(
            """
extension = _extension.loaded
before, after = extension.hooks_of(1, _extension._box.generation)
for odd in (None, 1, "x", object(), dist.group.WORLD):
    assert before(odd) is None and after(odd) is None
    assert extension.finish(odd) is None and extension.bind(odd) is None
extension.bind(_extension._box.generation)
assert extension.interrupted() is None and extension.begin() == 0 and extension.begin(*"abcdef") == 0
assert extension.is_inside("x") == 0
for wrong in (lambda: extension.hooks_of("x", 1), extension.prepare, extension.wrap_wait, extension.wrap_method):
    try:
        wrong()
    except ValueError:
        pass
    else:
        raise AssertionError(wrong)
for wrong in (lambda: dist.Work.wait(), lambda: dist.Work.wait(1), lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(*range(20))):
    try:
        wrong()
    except TypeError:
        pass
    else:
        raise AssertionError(wrong)
dist.all_reduce(torch.ones(1))
"""
        )

    def test_keyboard_interrupt_in_a_callback_is_raised(self):
        code = """
import signal
from ddp_doctor._ddp import _buckets
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
def expect_interrupt(call):
    try:
        call()
    except KeyboardInterrupt:
        return
    raise AssertionError("no KeyboardInterrupt")
class Handled(Exception):
    def __str__(self):
        signal.raise_signal(signal.SIGINT)
        return "not reached"
t = torch.ones(2)
def calls():
    dist.all_reduce(t)
calls()
calls()
try:
    raise Handled
except Handled as error:
    expect_interrupt(calls)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
loss = [model(torch.ones(2, 4)).sum() for _ in range(2)]
def interrupt(callback):
    signal.raise_signal(signal.SIGINT)
queue, _buckets._queue_callback = _buckets._queue_callback, interrupt
expect_interrupt(loss[0].backward)
_buckets._queue_callback = queue
calls()
"""
        for capture in (None, "interception"):
            for native in "01":
                self.run_job(code, DDP_DOCTOR_NATIVE_HOOKS=native, DDP_DOCTOR_CAPTURE=capture)

    def test_python_hooks_are_used_if_wait_is_replaced(self):
        outcome = job(
            """
import torch, torch.distributed as dist
original, seen = dist.Work.wait, []
def wait(self, *args):
    seen.append(self)
    return original(self, *args)
dist.Work.wait = wait
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
assert len(seen) == 1 and dist.Work.wait is wait
"""
        )
        os.unlink(outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)
        self.assertIn("the slower Python hooks are used: the program replaces Work.wait.", outcome.outputs[0])
        self.assertEqual(len(outcome.box.of("wait-begin")), 1)

    def test_failure_while_hooks_are_replaced_changes_nothing(self):
        outcome = job(
            """
import torch, torch.distributed as dist
from ddp_doctor._c10d import _calls, _extension, _methods
before = dist.Work.wait, dist.ProcessGroup.allreduce, _calls.begin
def fail(extension):
    raise MemoryError("no memory")
_methods.native_methods = fail
dist.init_process_group("gloo")
assert before == (dist.Work.wait, dist.ProcessGroup.allreduce, _calls.begin)
dist.all_reduce(torch.ones(1))
""",
            DDP_DOCTOR_CAPTURE="interception",
        )
        os.unlink(outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)
        self.assertEqual([r.op for r in outcome.box.of("issued")], [32, 1, 34])
        self.assertEqual(len(outcome.box.of("wait-end")), 1)

    def test_unloadable_extension_is_reported_in_one_line(self):
        folder = tempfile.mkdtemp(prefix="ddp-doctor-test-")
        self.addCleanup(shutil.rmtree, folder)
        alone = shutil.copy(library(), folder)
        beside = os.path.join(folder, EXTENSION)
        extension = os.path.join(os.path.dirname(library()), EXTENSION)

        def link_in_a_shared_directory():
            os.chmod(folder, 0o1777)
            os.unlink(beside)
            os.symlink(extension, beside)

        def link_to_a_shared_directory():
            os.chmod(folder, 0o755)
            shared = os.path.join(folder, "shared")
            os.mkdir(shared)
            os.chmod(shared, 0o777)
            os.unlink(beside)
            os.symlink(shutil.copy(extension, shared), beside)

        for ranks, place in (
            (2, lambda: None),
            (1, lambda: open(beside, "w").close()),
            (1, lambda: os.chmod(shutil.copy(extension, beside), 0o777)),
            (1, link_in_a_shared_directory),
            (1, link_to_a_shared_directory),
        ):
            place()
            outcome = job(
                "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
                "dist.all_reduce(torch.ones(1))\nchild = dist.new_group([0])\n",
                ranks,
                DDP_DOCTOR_LIBRARY=alone,
            )
            os.unlink(outcome.file)
            self.assertEqual(outcome.statuses, [0] * ranks, outcome.outputs)
            self.assertEqual([r.op for r in outcome.boxes[0].of("issued")][:3], [32, 5, 1])
            lines = [line for output in outcome.outputs for line in output.splitlines() if "ddp-doctor" in line]
            self.assertEqual(len(lines), 1, outcome.outputs)
            self.assertIn("the slower Python hooks are used", lines[0])
            self.assertIn(EXTENSION, lines[0])


if __name__ == "__main__":
    unittest.main()
