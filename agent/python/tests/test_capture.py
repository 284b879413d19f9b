"""Black boxes of real Gloo programs with one or two ranks."""

import os
import sys
import unittest

import boxreader as b
from support import PACKAGE, job

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, BROADCAST = range(1, 7)
SEND, RECV, COALESCED = 10, 11, 12
INIT, NEW_GROUP, DESTROY, MONITORED, SPLIT = range(32, 37)

HEAD = """
import os, sys, threading, time, _thread
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
"""


class Capture(unittest.TestCase):
    maxDiff = None

    def run_job(self, code, ranks=1, statuses=None, **changes):
        outcome = job(HEAD + code, ranks, **changes)
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, statuses or [0] * ranks, "\n".join(outcome.outputs))
        self.assertEqual(len(outcome.boxes), ranks, outcome.outputs)
        return outcome

    def issued(self, box, *ops):
        return [r for r in box.of("issued") if not ops or r.op in ops]

    def test_versions_and_memory_samples_are_recorded(self):
        o = self.run_job(
            """
import ddp_doctor
from ddp_doctor import _memory
# No CUDA here: PyTorch's words for it, as a process that uses it would have them.
class Properties:
    total_memory = 80 << 30
size = lambda current, peak: {"all": {"current": current, "peak": peak, "allocated": 0, "freed": 0}, "small_pool": {}}
held = {
    "allocated_bytes": size(1 << 30, 3 << 30),
    "reserved_bytes": size(2 << 30, 4 << 30),
    "inactive_split_bytes": size(5 << 20, 0),
    "num_alloc_retries": 0,
    "num_ooms": 0,
    "active": size(3, 0), "inactive_split": size(2, 0), "segment": size(4, 0),
}
piece = lambda state, mib: {"state": state, "size": mib << 20}
segment = lambda device, pool, *pieces: {"device": device, "segment_pool_id": pool, "blocks": list(pieces)}
segments = [
    segment(1, (0, 0), piece("active_allocated", 900), piece("inactive", 3), piece("inactive", 7)),
    segment(1, (0, 0), piece("active_awaiting_free", 80)),
    segment(1, (0, 1), piece("inactive", 50)),  # of a captured graph
    segment(0, (0, 0), piece("inactive", 60)),
]
looks = 0
def snapshot(**how):
    global looks
    looks += 1
    return segments
def at_a_step(**changes):
    held.update(changes)
    _memory._next = 0.0
    ddp_doctor.step()
torch.cuda.memory_snapshot = snapshot
torch._C._cuda_isHistoryEnabled = lambda: False
_memory.failed(torch.cuda.OutOfMemoryError())  # CUDA is in use by nobody
ddp_doctor.step()
assert not torch.cuda.is_initialized()
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 1
torch.cuda.memory_stats_as_nested_dict = lambda device: held if device == 1 else {}
torch.cuda.get_device_properties = lambda device: Properties
_memory._next = 0.0
ddp_doctor.step()
ddp_doctor.step()  # too early for another sample
for more in (1 << 20, 1 << 28):  # not worth one, worth one
    held["allocated_bytes"]["all"]["current"] += more
    at_a_step()
assert looks == 0
at_a_step(num_alloc_retries=1)
at_a_step(num_alloc_retries=2)  # too early for another look
_memory._next_snapshot = 0.0
at_a_step(num_alloc_retries=3, active=size(20_000, 0))  # too many pieces
_memory._next_snapshot = 0.0
torch._C._cuda_isHistoryEnabled = lambda: True
at_a_step(num_alloc_retries=4, active=size(3, 0))  # each with its history
torch._C._cuda_isHistoryEnabled = lambda: False
assert looks == 1
def refuses(**how):
    raise RuntimeError("an allocator without pieces")
torch.cuda.memory_snapshot = refuses
_memory._next_snapshot = 0.0
at_a_step(num_ooms=1)
torch.cuda.memory_snapshot = snapshot
segments = []
_memory._next_snapshot = 0.0
at_a_step(num_ooms=2)  # nothing is free
assert looks == 2
held = {}  # another allocator, which counts nothing
_memory._next = 0.0
ddp_doctor.step()
"""
        )
        unknown = 2**64 - 1
        samples = [list(record.memory) for record in o.box.of("memory")]
        grown = (1 << 30) + (1 << 20) + (1 << 28)
        rest = [2 << 30, 3 << 30, 5 << 20]
        expected = [
            [1, unknown, 80 << 30, 1 << 30, *rest, 0, 0, unknown],
            [1, unknown, 80 << 30, grown, *rest, 0, 0, unknown],
            [1, unknown, 80 << 30, grown, *rest, 1, 0, 7 << 20],
            [1, unknown, 80 << 30, grown, *rest, 2, 0, unknown],
            [1, unknown, 80 << 30, grown, *rest, 3, 0, unknown],
            [1, unknown, 80 << 30, grown, *rest, 4, 0, unknown],
            [1, unknown, 80 << 30, grown, *rest, 4, 1, unknown],
            [1, unknown, 80 << 30, grown, *rest, 4, 2, 0],
            [1, unknown, 80 << 30, *[unknown] * 7],
        ]
        self.assertEqual(samples, expected)
        settings = dict(record.text.split("=", 1) for record in o.box.of("setting"))
        self.assertEqual(settings["python"], "%d.%d.%d" % sys.version_info[:3])
        self.assertRegex(settings["torch"], r"^\d+\.\d+")

    def test_gpu_is_recorded_only_if_the_program_names_a_device(self):
        o = self.run_job(
            """
from ddp_doctor import _init
class Properties:
    uuid = "of-1"
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 1
torch.cuda.get_device_properties = lambda number: Properties
dist.destroy_process_group()
store = "file://%s/store" % os.environ["DDP_DOCTOR_RUN_DIR"]
dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
assert not _init._gpu_recorded, "no device was named"
_init.record_gpu(torch.device("cpu"))
assert not _init._gpu_recorded
_init.record_gpu(torch.device("cuda"))
"""
        )
        settings = dict(record.text.split("=", 1) for record in o.box.of("setting"))
        self.assertEqual((settings["gpu.number"], settings["gpu"]), ("1", "GPU-of-1"))

    def test_out_of_memory_records_limited_samples(self):
        o = self.run_job(
            """
from ddp_doctor import _exceptions, _memory, _words
class Properties:
    total_memory = 80 << 30
current = lambda count: {"all": {"current": count}}
held = {"allocated_bytes": current(1 << 30), "active": current(1), "inactive_split": current(1), "segment": current(1)}
free = {"device": 0, "blocks": [{"state": "inactive", "size": 5 << 20}]}
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.memory_stats_as_nested_dict = lambda device: held
torch.cuda.get_device_properties = lambda device: Properties
torch.cuda.memory_snapshot = lambda: [free]  # as PyTorch 2.10 has it, which takes no option
torch._C._cuda_isHistoryEnabled = lambda: False
_exceptions.record(_words.LEFT_FORWARD, RuntimeError("another"))
for _ in range(20):
    try:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    except RuntimeError as error:
        refused = error
        _exceptions.record(_words.LEFT_FORWARD, error)
    _exceptions._seen.clear()
"""
        )
        said = [record.kind for record in o.box.of("memory", "exception")]
        self.assertEqual(said[:4], ["exception", "exception", "memory", "exception"])
        samples = [record.memory for record in o.box.of("memory")]
        self.assertEqual(len(samples), 16)
        for sample in samples:
            self.assertEqual((sample[0], sample[3], sample[9]), (0, 1 << 30, 5 << 20))

    def test_call_and_wait_are_recorded(self):
        o = self.run_job(
            """
t = torch.ones(4, 3)
dist.all_reduce(t, op=dist.ReduceOp.MAX)  # here
work = dist.all_reduce(t.double(), async_op=True)
work.wait()  # wait
"""
        )
        first, second = self.issued(o.box, ALL_REDUCE)
        self.assertEqual((first.dtype, first.shape, first.numel, first.reduce_op), (1, [4, 3], 12, 5))
        self.assertEqual(first.site[1:], (o.line("here"), "<module>"))
        self.assertEqual(first.site[0].rsplit("/")[-1], "train.py")
        self.assertFalse(first.flags & (b.ASYNC | b.HIDDEN))
        self.assertEqual(second.dtype, 2)
        self.assertTrue(second.flags & b.ASYNC)
        waits = o.box.of("wait-begin")
        self.assertEqual([w.call for w in waits], [first.call, second.call])
        self.assertEqual([w.site[1] for w in waits], [o.line("here"), o.line("wait")])
        self.assertEqual(len(o.box.of("wait-end")), 2)
        self.assertEqual([r.call for r in o.box.of("returned")][-2:], [first.call, second.call])
        self.assertEqual([r.text for r in o.box.of("exit")], ["main returned"])
        self.assertEqual(o.box.rank, 0)
        self.assertEqual(o.box.layer, "c10d")

    def test_dropped_works_are_recorded_as_unawaited(self):
        o = self.run_job(
            """
from torch.distributed.distributed_c10d import _coalescing_manager
t = torch.ones(64)
group = dist.group.WORLD
for step in range(5):
    dist.all_reduce(t, async_op=True)  # dropped
    dist.all_reduce(t, async_op=True).get_future().wait()  # future
    while not dist.all_reduce(t, async_op=True).is_completed(): pass  # looked at
    dist.all_reduce(t, async_op=True).wait()  # waited for
    with _coalescing_manager(group, async_ops=True) as gathered:
        dist.all_reduce(t, group=group)  # gathered
    gathered.wait()
    dist.all_reduce(t)  # synchronous
late = [dist.all_reduce(t, async_op=True) for _ in range(4)]  # late
for work in late: work.wait()
dist.destroy_process_group()
"""
        )
        unawaited = o.box.of("unawaited")
        self.assertEqual({record.site[1] for record in unawaited}, {o.line("dropped")})
        dropped = [r.call for r in self.issued(o.box, ALL_REDUCE) if r.site[1] == o.line("dropped")]
        self.assertEqual(sorted(record.call for record in unawaited), dropped)

    def test_ctypes_and_builtins_record_the_same(self):
        program = """
assert type(_box.lib.issued_at).__name__ == %r, _box.lib.issued_at
t = torch.ones(4, 3)
dist.all_reduce(t)
dist.all_to_all_single(t, t.clone(), [4], [4])
dist.all_reduce(t, async_op=True).wait()
dist.new_group([0])
dist.destroy_process_group()
"""
        head = "import ddp_doctor; ddp_doctor.enable()\nfrom ddp_doctor import _box, _builtins\n"
        without = "_builtins.of = lambda library: None\n"
        said = []
        for switch, kind in ((without, "_FuncPtr"), ("", "builtin_function_or_method")):
            outcome = job(head + switch + HEAD + program % kind, PYTHONPATH=PACKAGE)
            self.addCleanup(os.unlink, outcome.file)
            self.assertEqual(outcome.statuses, [0], outcome.outputs)
            # A garbage collection may take long on a busy machine.
            records = [r for r in outcome.box.records if r.kind != "spent"]
            said.append([(r.kind, r.op, r.call, r.seq, r.shape, r.flags, r.sizes) for r in records])
        self.assertEqual(said[0], said[1])
        self.assertIn("wait-end", [record[0] for record in said[0]])

    def test_logged_exception_is_not_recorded_as_uncaught(self):
        o = self.run_job(
            """
def main():
    try:
        raise ValueError("logged")
    except ValueError:
        sys.excepthook(*sys.exc_info())
    dist.barrier()

before = sys.excepthook
def wrapped(*exception):
    before(*exception)
sys.excepthook = wrapped
main()
"""
        )
        self.assertEqual(o.box.of("exception"), [])
        self.assertEqual([r.text for r in o.box.of("exit")], ["main returned"])

    def test_uncaught_exception_is_recorded_behind_another_hook(self):
        o = self.run_job(
            """
before = sys.excepthook
def wrapped(*exception):
    before(*exception)
sys.excepthook = wrapped
def main():
    raise ValueError("bad")
main()
""",
            statuses=[1],
        )
        self.assertIn("ValueError: bad", [r.text for r in o.box.of("exception")])
        self.assertEqual([r.text for r in o.box.of("exit")], ["uncaught exception"])

    def test_exception_before_init_creates_a_box(self):
        raises = """
            import sys
            def load():
                raise ValueError("no such data set")  # raises
            %s
            load()
            """
        # Without another excepthook, with one that calls the previous hook, with one that does not, with PyTorch imported.
        for before in (
            "",
            "theirs = sys.excepthook; sys.excepthook = lambda *e: theirs(*e)",
            "sys.excepthook = lambda *e: None",
            "import torch.distributed",
        ):
            outcome = job(raises % before, RANK="1", WORLD_SIZE="3")
            self.addCleanup(os.unlink, outcome.file)
            self.assertEqual(outcome.statuses, [1], outcome.outputs)
            self.assertNotIn("ddp-doctor:", outcome.outputs[0])
            self.assertEqual((outcome.box.rank, outcome.box.world_size), (1, 3))
            (exception,) = outcome.box.of("exception")
            self.assertEqual((exception.code, exception.text), (1, "ValueError: no such data set"))
            self.assertEqual(exception.site[1:], (outcome.line("raises"), "load"))
            self.assertEqual([r.text for r in outcome.box.of("exit")], ["uncaught exception"])

    def test_exceptions_of_other_processes_create_no_box(self):
        for code, status, changes in (
            ("raise ValueError('no rank')", 1, {"RANK": None}),
            ("raise ValueError('no world')", 1, {"WORLD_SIZE": None}),
            ("raise ValueError('no such rank')", 1, {"RANK": "1", "WORLD_SIZE": "1"}),
            ("raise SystemExit(3)", 3, {}),
            ("raise KeyboardInterrupt", -2, {}),
            ("import sys\ntry: 1 / 0\nexcept Exception: sys.excepthook(*sys.exc_info())", 0, {}),
            ("import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", 0, {}),
            ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1 / 0'])", 0, {}),
            ("import subprocess, sys\nsubprocess.run(['sh', '-c', sys.executable + ' -c 1/0; true'])", 0, {}),
            ("import os\nif os.fork() == 0: 1 / 0\nos.wait()", 0, {}),
            (
                "import multiprocessing as m\ndef work(): 1 / 0\nif __name__ == '__main__':\n"
                " p = m.get_context('spawn').Process(target=work); p.start(); p.join()",
                0,
                {},
            ),
            (
                "import torch.multiprocessing as mp\ndef work(i): 1 / 0\nif __name__ == '__main__': mp.spawn(work)",
                1,
                {},
            ),
        ):
            outcome = job(code, forked=False, **changes)
            self.addCleanup(os.unlink, outcome.file)
            self.assertEqual(outcome.statuses, [status], (code, outcome.outputs))
            self.assertEqual(outcome.boxes, [], code)

    def test_launcher_with_a_rank_creates_no_box(self):
        outcome = job(
            """
            import sys
            from torch.distributed.run import main
            main(["--standalone", "--nproc-per-node", "1", "--no-python", "false"])
            """
        )
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, [1], outcome.outputs)
        self.assertIn("ChildFailedError", outcome.outputs[0])
        self.assertEqual(outcome.boxes, [])

    def test_messages_record_peer_tag_and_shape(self):
        o = self.run_job(
            """
t = torch.ones(5)
if rank == 0:
    dist.send(t, 1, tag=7)
else:
    dist.recv(t, 0, tag=7)
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, torch.ones(5), 1 - rank)])
for work in works:
    work.wait()
def send(tensor):
    return dist.isend(tensor, 1, tag=9)
def recv(tensor):
    return dist.irecv(tensor, 0, tag=9)
(send(t) if rank == 0 else recv(t)).wait()
""",
            2,
        )
        send = self.issued(o.boxes[0], SEND, RECV)
        recv = self.issued(o.boxes[1], SEND, RECV)
        self.assertEqual((send[0].op, send[0].root, send[0].tag, send[0].shape), (SEND, 1, 7, [5]))
        self.assertEqual((recv[0].op, recv[0].root, recv[0].tag, recv[0].shape), (RECV, 0, 7, [5]))
        self.assertFalse(send[0].flags & b.ASYNC)
        for calls in (send, recv):
            self.assertEqual(calls[-1].tag, 9)
            self.assertTrue(all(r.flags & b.ASYNC and not r.flags & b.HIDDEN for r in calls[1:]))
        for box, calls in zip(o.boxes, (send, recv)):
            self.assertEqual({w.call for w in box.of("wait-begin")}, {r.call for r in calls})

    def test_compared_shapes_are_recorded(self):
        o = self.run_job(
            """
def attempt(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except RuntimeError as error:  # Gloo had no such collective
        assert "support" in str(error), error
t = torch.ones(4)
dist.all_gather([torch.ones(4), torch.ones(4)], t)
dist.all_gather_into_tensor(torch.ones(8), t)
attempt(dist.reduce_scatter, torch.ones(4), [t, t], op=dist.ReduceOp.MIN)
attempt(dist.reduce_scatter_tensor, torch.ones(4), torch.ones(8))
dist.all_to_all_single(torch.ones(4), t, [2, 2], [2, 2])
attempt(dist.all_to_all, [torch.ones(3), torch.ones(3)], [torch.ones(3), torch.ones(3)])
dist.broadcast(t, 1)
dist.scatter(t, [t, t] if rank == 0 else None, 0)
dist.gather(t, [t, t.clone()] if rank == 1 else None, 1)
with dist._coalescing_manager():
    dist.all_reduce(t, op=dist.ReduceOp.PRODUCT)
    dist.all_reduce(torch.ones(2, 2), op=dist.ReduceOp.PRODUCT)
dist.barrier()
""",
            2,
            PYTHONWARNINGS="ignore",
        )
        for box in o.boxes:
            calls = [(r.op, r.shape, r.reduce_op, r.tensors) for r in self.issued(box) if r.op < 32]
            self.assertEqual(
                calls,
                [
                    (ALL_GATHER, [4], 0, 1),
                    (ALL_GATHER, [4], 0, 1),
                    (REDUCE_SCATTER, [4], 4, 1),
                    (REDUCE_SCATTER, [4], 1, 1),
                    (ALL_TO_ALL, [4], 0, 1),
                    (ALL_TO_ALL, [3], 0, 2),
                    (BROADCAST, [4], 0, 1),
                    (9, [4], 0, 1),
                    (8, [4], 0, 1),
                    (COALESCED, [4], 3, 2),
                    (BARRIER, None, 0, 0),
                ],
            )
            self.assertEqual([s.sizes for s in box.of("splits")], [[2, 2], [2, 2]])
            self.assertEqual([s.flags & b.OUTPUT for s in box.of("splits")], [0, b.OUTPUT])
            self.assertEqual([r.root for r in self.issued(box) if r.flags & b.ROOT], [1, 0, 1])

    def test_ddp_calls_are_hidden_and_steps_are_counted(self):
        o = self.run_job(
            """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))  # constructor
other = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
for i in range(3):
    loss = model(torch.ones(1, 3)).sum() + other(torch.ones(1, 3)).sum()
    loss.backward()  # backward
with torch.no_grad():
    model(torch.ones(1, 3))
model.eval()
model(torch.ones(1, 3))
"""
        )
        calls = [r for r in self.issued(o.box) if r.op < 32]
        self.assertTrue(all(r.flags & b.HIDDEN for r in calls), calls)
        self.assertIn(o.line("constructor"), {r.site[1] for r in calls})
        self.assertEqual({r.site[1] for r in calls if r.op == ALL_REDUCE}, {o.line("backward")})
        self.assertEqual(len(o.box.of("step")), 3)

    def test_bucket_waits_of_ddp_are_timed(self):
        o = self.run_job(
            """
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
class Before(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g):
        time.sleep(0.3)  # all buckets are on their way
        return g
class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): raise KeyError("in backward")
def layers(): return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
model = DistributedDataParallel(layers(), bucket_cap_mb=1e-6)
other = DistributedDataParallel(layers(), find_unused_parameters=True)
ones = torch.ones(1, 3, requires_grad=True)
def backward(what):
    dist.barrier()
    what.sum().backward()
for i in range(2):
    backward(model(ones))
dist.barrier()
result = model(ones)
if rank: time.sleep(0.3)
result.sum().backward()
backward(model(Before.apply(ones)))
backward(model(ones) + other(ones))
with model.no_sync(): backward(model(ones))
result = model(ones).sum()
backward(result.backward(retain_graph=True) or result)  # the reducer averages once for a forward
backward(checkpoint(lambda x: model(x), ones, use_reentrant=True))
static = DistributedDataParallel(layers(), static_graph=True)
for i in range(2): backward(static(ones))
try: backward(model(Broken.apply(ones)))
except KeyError: pass
torch.autograd.grad(model.module(ones).sum(), ones)
backward(other(ones))
mine = DistributedDataParallel(layers())
def averages(state, bucket):  # no thread of Gloo's calls Python: it could when the program is at its end already
    dist.all_reduce(bucket.buffer())
    averaged = torch.futures.Future()
    averaged.set_result(bucket.buffer())
    return averaged
mine.register_comm_hook(None, averages)
backward(mine(ones))
""",
            ranks=2,
        )
        for box in o.boxes:
            waits = [r.numel / 1e9 for r in box.of("spent") if r.code == 3]
            # Two, a late peer, work behind the buckets, two models, a retained graph, a checkpoint, two of a
            # static graph, one after an exception.
            self.assertEqual(len(waits), 10, waits)
            late = waits.pop(2)
            self.assertGreater(late, 0.2) if box.rank == 0 else self.assertLess(late, 0.2)
            self.assertLess(max(waits), 0.2, waits)

    def test_model_layout_is_recorded_before_its_first_call(self):
        o = self.run_job(
            """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 2)
        self.frozen = torch.nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.tied = torch.nn.Linear(3, 2)
        self.tied.weight = self.first.weight
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    def forward(self, inputs):
        return self.first(inputs) + self.tied(inputs) + self.scale
model = torch.nn.parallel.DistributedDataParallel(Model())  # wrapped
wide = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(200)))
torch.nn.parallel.DistributedDataParallel(wide)
torch.nn.parallel.DistributedDataParallel(Model().requires_grad_(True), process_group=dist.new_group([0]))
"""
        )
        said = o.box.of("parameters")
        first = said[0]
        self.assertEqual(
            first.text.split("\n"),
            ["float64 - scale", "float32 2,3 first.weight", "float32 2 first.bias", "float32 2 tied.bias", ""],
        )
        self.assertEqual((first.code, first.seq, first.numel, first.tensors), (1, 1, 4, 0))
        self.assertEqual(first.site[1], o.line("wrapped"))
        self.assertLess(first.at, min(r.at for r in self.issued(o.box) if r.op < 32))
        # A long layout is recorded in consecutive pieces.
        wide = [r for r in said if r.seq == 2]
        lines = [line for r in wide for line in r.text.splitlines()]
        self.assertEqual((len(lines), {r.numel for r in wide}), (400, {400}))
        self.assertEqual(lines[-1], "float32 1 199.bias")
        starts = [sum(len(r.text.splitlines()) for r in wide[:i]) for i in range(len(wide))]
        self.assertEqual([r.tensors for r in wide], starts)
        self.assertGreater(len(wide), 1)
        # Models are numbered per group.
        other = said[-1]
        self.assertEqual((other.seq, other.group != first.group, other.numel), (1, True, 6))

    def test_missing_gradients_are_recorded_after_backward(self):
        o = self.run_job(
            """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    def forward(self, inputs):
        return self.one(inputs), self.other(inputs)  # uses
model = torch.nn.parallel.DistributedDataParallel(Model())
other = torch.nn.Linear(2, 1)
for step in range(12):
    one, two = model(torch.ones(1, 3))
    one.sum().backward()  # first
    other(torch.ones(1, 2)).sum().backward()
    two.sum().backward()
with model.no_sync():
    model(torch.ones(1, 3))[0].sum().backward()
model(torch.ones(1, 3))[0].sum().backward()
try:
    model(torch.ones(1, 3))
except RuntimeError as e:
    assert "finished reduction" in str(e), e
"""
        )
        said = [r for r in o.box.of("parameters") if r.code not in (1, 8)]
        # The line at which the forward uses that part of the model is recorded once.
        used = [r for r in o.box.of("parameters") if r.code == 8]
        self.assertEqual([r.site[1] for r in used], [o.line("uses")])
        # After eight late gradients only DDP's own exception is recorded.
        self.assertEqual([r.code for r in said], [2, 3] * 8 + [2])
        missing = "float32 2,3 other.weight\nfloat32 2 other.bias\n"
        self.assertEqual({r.text for r in said if r.code == 2}, {missing})
        self.assertEqual(said[0].site[1], o.line("first"))
        self.assertLess(said[-1].at, o.box.of("exception")[-1].at)

    def test_parameter_that_is_ready_twice_is_recorded(self):
        o = self.run_job(
            """
from torch.utils.checkpoint import checkpoint
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.twice = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    def forward(self, inputs):
        hidden = self.first(inputs)
        for _ in range(2):
            hidden = checkpoint(self.twice, hidden, use_reentrant=True)
        return hidden
model = torch.nn.parallel.DistributedDataParallel(Model(), find_unused_parameters=True)
try:
    model(torch.ones(1, 2)).sum().backward()  # backward
except RuntimeError as e:
    assert "ready only once" in str(e), e
"""
        )
        (said,) = [r for r in o.box.of("parameters") if r.code != 1]
        self.assertEqual((said.code, said.site[1]), (4, o.line("backward")))
        self.assertIn(said.text, ("float32 2,2 twice.weight\n", "float32 2 twice.bias\n"))

    def test_repeated_gradients_outside_forward_are_recorded(self):
        o = self.run_job(
            """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
def outside(times):
    for _ in range(times):
        model.zero_grad()
        model.module(torch.ones(1, 3)).sum().backward()  # outside
outside(2)
model(torch.ones(1, 3)).sum().backward()
outside(2)
with model.no_sync():
    model(torch.ones(1, 3)).sum().backward()
model.zero_grad()
for _ in range(4):
    inputs = torch.ones(1, 3, requires_grad=True)
    torch.autograd.grad(model.module(inputs).sum(), inputs)
    model.module(torch.ones(1, 3)).sum().backward()  # accumulates
with torch.no_grad():
    model(torch.ones(1, 3))
outside(8)
"""
        )
        (said,) = [r for r in o.box.of("parameters") if r.code != 1]
        self.assertEqual((said.code, said.numel, said.site[1]), (6, 2, o.line("outside")))

    def test_needless_search_for_unused_parameters_is_recorded_once(self):
        o = self.run_job(
            """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    def forward(self, inputs, with_other):
        return self.one(inputs) + (self.other(inputs) if with_other else 0)
wrap = torch.nn.parallel.DistributedDataParallel
some, none, plain = wrap(Model(), find_unused_parameters=True), wrap(Model(), find_unused_parameters=True), wrap(Model())
for step in range(320):
    for model in (some, none, plain):
        model(torch.ones(1, 3), model is not some or step % 5 > 0).sum().backward()
"""
        )
        (said,) = [r for r in o.box.of("parameters") if r.code != 1]
        self.assertEqual((said.code, said.seq, said.numel), (7, 2, 4))
        self.assertGreater(said.tensors, 0)

    def test_models_are_not_kept_alive(self):
        self.run_job(
            """
import gc, weakref
from ddp_doctor import _parameters
for _ in range(3):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()
    alive = [weakref.ref(model), weakref.ref(model.module.weight)]
    del model
    gc.collect()
    assert [it() for it in alive] == [None, None]
assert len(_parameters._models) == 1
"""
        )

    def test_forward_records_site_input_and_flags(self):
        o = self.run_job(
            """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
def run(inputs):
    return model(inputs).sum()  # run
loader = torch.utils.data.DataLoader(torch.ones(6, 2), batch_size=2)
for batch in loader:
    run(batch).backward()  # train
run(batch).backward()  # again
with model.no_sync():
    run(batch.clone()).backward()  # accumulate
model(input=batch.clone()).sum().backward()  # plain
""",
            forked=False,
        )
        steps = o.box.of("step")
        run, plain = o.line("run"), o.line("plain")
        self.assertEqual([s.site[1] for s in steps], [run] * 5 + [plain])
        lines = [o.line(name) for name in ("train", "train", "train", "again", "accumulate")]
        self.assertEqual([[c[1] for c in s.callers] for s in steps], [[line] for line in lines] + [[]])
        self.assertEqual([s.numel for s in steps], [1, 2, 3, 3, 3, 3])
        flags = [s.flags & (b.FORWARD | b.REPEATED | b.UNSYNCHRONISED) for s in steps]
        plain = b.FORWARD
        self.assertEqual(flags, [plain] * 3 + [plain | b.REPEATED, plain | b.UNSYNCHRONISED, plain])

    def test_inputs_of_forwards_are_not_kept_alive(self):
        self.run_job(
            """
import weakref
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
inputs = torch.ones(2, 2)
model(inputs)
gone = weakref.ref(inputs)
del inputs
assert gone() is None
"""
        )

    def test_input_can_be_swapped_after_its_forward(self):
        self.run_job(
            """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
inputs, others = torch.ones(2, 2), torch.zeros(2, 2)
model(inputs)
torch.utils.swap_tensors(inputs, others)
assert inputs.sum() == 0
"""
        )

    def test_site_records_its_first_callers(self):
        o = self.run_job(
            """
def inner():
    dist.barrier()  # inner
def outer():
    inner()  # outer
outer()  # first
inner()  # second
""",
            forked=False,
        )
        first, second = self.issued(o.box, BARRIER)
        self.assertEqual(first.site[1], o.line("inner"))
        self.assertEqual([c[1] for c in first.callers], [o.line("outer"), o.line("first")])
        self.assertEqual(second.callers, first.callers)

    def test_explicit_steps_and_phases_are_recorded(self):
        o = self.run_job(
            """
import ddp_doctor
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
@ddp_doctor.phase("evaluation")
def evaluate():
    dist.barrier()
for i in range(2):
    ddp_doctor.step()
    model(torch.ones(1, 3)).sum().backward()
with ddp_doctor.phase("checkpoint"):
    dist.barrier()
evaluate()
"""
        )
        self.assertEqual(len(o.box.of("step")), 2)
        self.assertEqual([r.phase for r in self.issued(o.box, BARRIER)], ["checkpoint", "evaluation"])
        self.assertEqual(len(o.box.of("phase-end")), 2)

    def test_groups_and_their_creations_are_recorded(self):
        o = self.run_job(
            """
import inspect
from torch.distributed.device_mesh import init_device_mesh
g = dist.new_group([1])  # new
# The order of ranks could not be chosen before 2.12.
unsorted = {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}
h = dist.new_group([1, 0], group_desc="turned", **unsorted)
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
dist.all_reduce(torch.ones(1), group=mesh["b"].get_group())
try:
    dist.split_group(None, [[0, 1]])
except (AttributeError, RuntimeError):
    print("cannot split")  # Gloo's groups, before 2.12
dist.all_reduce(torch.ones(1), group=h)
dist.destroy_process_group(h)
dist.monitored_barrier()
dist.destroy_process_group()
# In a store that was used before, Gloo may find the addresses of the world that is gone.
store = "file://" + os.path.join(os.path.dirname(os.path.abspath(__file__)), "second-store")
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
dist.barrier()
""",
            2,
        )
        for box in o.boxes:
            world = box.groups[1]
            self.assertEqual((world.name, world.description, world.backend), ("0", "default_pg", "gloo"))
            self.assertEqual((world.ranks, world.epoch, world.destroyed), ([0, 1], 0, True))
            turned = next(g for g in box.groups.values() if g.description == "turned")
            turned_ranks = turned.ranks
            self.assertEqual((sorted(turned.ranks), turned.destroyed), ([0, 1], True))
            self.assertEqual(any(g.ranks == [1] and g.description == "undefined" for g in box.groups.values()), box.rank == 1)
            last = box.groups[max(box.groups)]
            self.assertEqual((last.name, last.epoch, last.destroyed), ("0", 1, False))
            ops = [r.op for r in self.issued(box)]
            for op in (INIT, NEW_GROUP, MONITORED, DESTROY):
                self.assertIn(op, ops)
            self.assertEqual(ops.count(INIT), 2)
            # Also for a group without this process, before the creation waits for the members.
            new, turned = self.issued(box, NEW_GROUP)[:2]
            self.assertEqual((new.group, new.site[1], new.kind), (0, o.line("new"), "issued"))
            made = new.creation
            self.assertEqual((made.name, made.ranks, made.epoch, made.backend), ("1", [1], 0, "gloo"))
            self.assertEqual(made.takes_all, 1)
            made = turned.creation
            self.assertEqual((made.name, made.ranks, made.description), ("2", turned_ranks, "turned"))
            splits = [] if "cannot split" in o.outputs[box.rank] else self.issued(box, SPLIT)
            for split in splits:
                self.assertEqual((split.creation.ranks, len(split.creation.name)), ([0, 1], 40))
            for call in (new, turned, *splits):
                self.assertEqual(len([r for r in box.of("returned") if r.call == call.call]), 1)
            destroyed = next(i for i, r in enumerate(box.records) if r.kind == "group-destroyed")
            self.assertEqual(box.records[destroyed - 1].op, DESTROY)

    def test_calls_of_threads_record_their_sites(self):
        o = self.run_job(
            """
pg = dist.group.WORLD
t = torch.ones(2)
_thread.start_new_thread(pg.allreduce, ([t],))
time.sleep(0.5)  # borrowed
def work():
    dist.all_reduce(t)  # in thread
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
        )
        calls = self.issued(o.box, ALL_REDUCE)
        self.assertTrue(calls[0].flags & b.BORROWED_SITE)
        self.assertEqual(calls[0].site[1], o.line("borrowed"))
        self.assertEqual({r.site[1] for r in calls[1:]}, {o.line("in thread")})
        self.assertFalse(any(r.flags & (b.BORROWED_SITE | b.HIDDEN) for r in calls[1:]))
        self.assertEqual({w.call for w in o.box.of("wait-begin")}, {r.call for r in calls[1:]})

    def test_tensors_works_and_exceptions_are_not_kept_alive(self):
        self.run_job(
            """
import gc, weakref
pg = dist.group.WORLD
def check(call):
    t = torch.ones(1000)
    storage = weakref.ref(t.untyped_storage())
    tensor = weakref.ref(t)
    work = call(t)
    if work is not None:
        work.wait()
        work = weakref.ref(work)
    del t
    time.sleep(0.05)
    assert tensor() is None and storage() is None, (tensor(), storage())
    assert work is None or work() is None
for _ in range(3):
    gc.disable()
    check(lambda t: dist.all_reduce(t))
    check(lambda t: dist.all_reduce(t, async_op=True))
    check(lambda t: dist.all_reduce_coalesced([t, t]))
    check(lambda t: dist.all_gather([torch.ones(1000)], t))
    check(lambda t: pg.allreduce([t]))
class Mine(Exception): pass
error = None
try:
    dist.all_reduce("no tensor")
except Exception as e:
    error = type(e)
assert error is TypeError, error
try:
    try:
        raise Mine()
    finally:
        dist.barrier()
except Mine as e:
    alive = weakref.ref(e)
gc.collect()
assert alive() is None
""",
            PYTHONWARNINGS="ignore",
        )

    def test_exceptions_are_recorded_by_kind(self):
        o = self.run_job(
            """
class Broken(torch.nn.Linear):
    def forward(self, x):
        if x.shape[0] == 2:
            raise ValueError("in forward")  # forward
        return super().forward(x)
model = torch.nn.parallel.DistributedDataParallel(Broken(3, 2))
try:
    model(torch.ones(2, 3))
except ValueError:
    dist.barrier()
class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): raise KeyError("in backward")
try:
    Bad.apply(torch.ones(1, requires_grad=True)).sum().backward()
except KeyError:
    pass
try:
    dist.all_reduce([])  # collective
except TypeError:
    pass
def in_thread():
    raise RuntimeError("in thread")
t = threading.Thread(target=in_thread); t.start(); t.join()
raise OSError("at last" + "!" * 3000)  # last
""",
            statuses=[1],
        )
        found = {(r.code, r.text.split(":")[0]): r for r in o.box.of("exception")}
        kinds = {r.text.split(":")[0]: [x.code for x in o.box.of("exception") if x.text.startswith(r.text[:8])] for r in o.box.of("exception")}
        self.assertEqual(kinds["ValueError"], [2, 5])
        self.assertEqual(kinds["KeyError"], [3])
        self.assertEqual(kinds["TypeError"], [4])
        self.assertEqual(kinds["RuntimeError"], [6])
        self.assertEqual(kinds["OSError"], [1])
        self.assertEqual(found[2, "ValueError"].site[1], o.line("forward"))
        self.assertEqual(found[4, "TypeError"].site[1], o.line("collective"))
        self.assertEqual(found[1, "OSError"].site[1], o.line("last"))
        self.assertLessEqual(len(found[1, "OSError"].text), 1000)
        self.assertEqual([(r.code, r.text) for r in o.box.of("exit")], [(1, "uncaught exception")])
        self.assertNotIn("ddp_doctor", o.outputs[0].split("OSError")[-2].split("Traceback")[-1])

    def test_exception_is_recorded_without_a_chained_excepthook(self):
        o = self.run_job(
            """
sys.excepthook = lambda *a: print("mine")
raise ValueError("lost")
""",
            statuses=[1],
        )
        self.assertEqual([(r.code, r.text) for r in o.box.of("exception")], [(1, "ValueError: lost")])

    def test_ways_to_exit_are_recorded(self):
        for code, status, want in (
            ("sys.exit(3)", 3, (3, "sys.exit")),
            ("sys.exit('a reason')", 1, (1, "sys.exit")),
            ("os._exit(4)", 4, (4, "os._exit")),
            ("raise SystemExit(5)", 5, (-1, "interpreter ended")),
            ("pass", 0, (0, "main returned")),
        ):
            with self.subTest(code):
                o = self.run_job(code, statuses=[status])
                self.assertEqual([(r.code, r.text) for r in o.box.of("exit")], [want])

    def test_exit_functions_can_be_pickled(self):
        self.run_job(
            """
import pickle, subprocess
child = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))(3)"
for leave in (sys.exit, os._exit):
    data = pickle.dumps(leave)
    assert pickle.loads(data) is leave
    assert subprocess.run([sys.executable, "-I", "-c", child, data.hex()]).returncode == 3
"""
        )

    def test_group_timeouts_are_recorded_at_creation_and_change(self):
        o = self.run_job(
            """
from datetime import timedelta
dist.new_group([0], timeout=timedelta(seconds=77))
set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
set_timeout(timedelta(milliseconds=1500))
dist.barrier()
"""
        )
        told = [(r.group, r.code) for r in o.box.of("group-timeout")]
        self.assertEqual(told, [(1, 1_800_000), (2, 77_000), (1, 1500)])

    def test_calls_of_atexit_handlers_follow_the_exit_record(self):
        late = "import atexit; atexit.register(lambda: dist.barrier())\n"
        for name, code in (("before", late + HEAD), ("after", HEAD + late)):
            with self.subTest("registered %s joining" % name):
                o = job(code + "dist.barrier()")
                self.addCleanup(os.unlink, o.file)
                self.assertEqual(o.statuses, [0], o.outputs)
                kinds = [r.kind for r in o.box.of("issued", "exit")]
                self.assertEqual(kinds[-3:], ["issued", "exit", "issued"])
                self.assertEqual(len({r.thread for r in o.box.of("issued", "exit")}), 1)

    def test_hooks_are_removed_before_the_interpreter_exits(self):
        for tail in ("", "dist.destroy_process_group()", "keep = [g, model]; dist.destroy_process_group()", "del g, model"):
            with self.subTest(tail):
                self.run_job(
                    """
g = dist.new_group([0])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=g)
model(torch.ones(1, 3)).sum().backward()
"""
                    + tail
                )

    def test_forked_child_records_nothing(self):
        o = self.run_job(
            """
from torch.utils.data import DataLoader
dist.barrier()
for batch in DataLoader(list(range(8)), batch_size=2, num_workers=2):  # loader
    pass
import ddp_doctor
child = os.fork()
if child == 0:
    ddp_doctor.step()
    from ddp_doctor import _box, _sites
    assert not _box.is_open and not _sites._places
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
dist.barrier()
"""
        )
        self.assertEqual(len(o.box.of("step")), 0)
        self.assertEqual([r.site[1] for r in o.box.of("input-ended")], [o.line("loader")])
        self.assertEqual([r.text for r in o.box.of("exit")], ["main returned"])

    def test_children_that_join_a_group_have_their_own_boxes(self):
        outcome = job(
            """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, port):
    os.environ["MASTER_PORT"] = port
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(2))
    if rank == 1 and len(sys.argv) > 9:
        raise ValueError("never")
    dist.destroy_process_group()
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        port = str(int(os.environ["MASTER_PORT"]))
        mp.start_processes(work, args=(port,), nprocs=2, start_method=method)
""",
            LOCAL_RANK=None,
            RANK="7",
            WORLD_SIZE="9",
        )
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)
        self.assertEqual([box.rank for box in outcome.boxes], [0, 0, 1, 1])
        for box in outcome.boxes:
            self.assertEqual(box.world_size, 2)
            self.assertEqual([r.op for r in self.issued(box)], [INIT, ALL_REDUCE, DESTROY])
            self.assertEqual(self.issued(box)[1].site[2], "work")

    def test_late_enable_captures_existing_groups(self):
        outcome = job(
            """
import sys, torch, torch.distributed as dist
from torch.distributed import destroy_process_group
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
g = dist.new_group([0])
sys.path.insert(0, %r)
import ddp_doctor
ddp_doctor.enable()
dist.all_reduce(torch.ones(3), group=g)
h = dist.new_group([0], group_desc="late")
dist.barrier(group=h)
destroy_process_group()
"""
            % os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
            PYTHONPATH=None,
        )
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)
        self.assertEqual(len(outcome.box.groups), 3)
        self.assertEqual([r.op for r in self.issued(outcome.box)], [ALL_REDUCE, NEW_GROUP, BARRIER, DESTROY])

    def test_compiled_and_functional_programs_are_captured(self):
        o = self.run_job(
            """
import torch.distributed._functional_collectives as fc
from torch.distributed.algorithms.join import Join
@torch.compile(backend="eager", fullgraph=True)
def f(x):
    return fc.all_reduce(x, "sum", dist.group.WORLD) + 1
f(torch.ones(2))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
compiled = torch.compile(model, backend="eager")
for i in range(2):
    compiled(torch.ones(1, 3)).sum().backward()
with Join([model]):
    for i in range(2):
        with model.no_sync():
            model(torch.ones(1, 3)).sum().backward()
        model(torch.ones(1, 3)).sum().backward()
objects = [None]
dist.all_gather_object(objects, {"a": 1})
dist.broadcast_object_list(objects, 0)
assert objects == [{"a": 1}]
"""
        )
        self.assertGreater(len(self.issued(o.box, ALL_REDUCE)), 5)
        self.assertEqual(len(o.box.of("step")), 6)


if __name__ == "__main__":
    unittest.main()
