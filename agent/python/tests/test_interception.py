"""Programs under interception (PyTorch before 2.14), and the records that they leave.

The tests run on all supported versions. `DDP_DOCTOR_CAPTURE=interception` enables interception also on
versions with hooks.
"""

import os
import unittest

from support import boxreader as b
from support import PACKAGE, job

ALL_REDUCE, ALL_GATHER, BARRIER, BROADCAST, ALL_GATHER_COALESCED = 1, 2, 5, 6, 13
HEAD = """
import os, pickle, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
"""


class Interception(unittest.TestCase):
    maxDiff = None

    def run_job(self, code, ranks=1, head=HEAD, **changes):
        changes.setdefault("DDP_DOCTOR_CAPTURE", "interception")
        # PyTorch may abort during the exit of the interpreter while a thread of Gloo is busy; this is not tested here.
        outcome = job(head + code + "\nos._exit(0)\n", ranks, **changes)
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, [0] * ranks, "\n".join(outcome.outputs))
        self.assertEqual(len(outcome.boxes), ranks, outcome.outputs)
        for box in outcome.boxes:
            self.assertEqual(box.of("note"), [])
            issued = [r.call for r in box.of("issued")]
            self.assertEqual(sorted(r.call for r in box.of("returned")), sorted(issued), "every call returns once")
        return outcome

    def issued(self, box, *ops):
        return [r for r in box.of("issued") if (r.op in ops if ops else r.op < 32)]

    def test_calls_from_python_are_recorded_once(self):
        o = self.run_job(
            """
t = torch.ones(4)
pg = dist.group.WORLD
dist.all_reduce(t)
pg.allreduce([t]).wait()
pg.allreduce(t, dist.ReduceOp.MAX).wait()
pg.broadcast(t, 0).wait()
pg.broadcast(tensor=t, root=0).wait()
dist.broadcast(t, 0)
dist.barrier()
"""
        )
        calls = [(r.op, r.shape, r.reduce_op, r.root if r.flags & b.ROOT else None) for r in self.issued(o.box)]
        self.assertEqual(
            calls,
            # Options that are not passed are not recorded.
            [(ALL_REDUCE, [4], 1, None), (ALL_REDUCE, [4], 0, None), (ALL_REDUCE, [4], 5, None)]
            + [(BROADCAST, [4], 0, 0)] * 3
            + [(BARRIER, None, 0, None)],
        )

    def test_calls_in_every_autograd_mode_are_recorded(self):
        o = self.run_job(
            """
t = torch.ones(4)
with torch.no_grad():
    dist.all_reduce(t)
with torch.inference_mode():
    dist.all_reduce(t)
    dist.all_reduce(torch.ones(4))
with torch.autocast("cpu"):
    dist.all_reduce(t)
dist.all_reduce(torch.ones(4, requires_grad=True))
dist.all_reduce(torch.nn.Parameter(torch.ones(4)))
sparse = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (4,))
dist.all_reduce(sparse)
assert sparse.to_dense().tolist() == [1, 2, 0, 0]
"""
        )
        self.assertEqual(len(self.issued(o.box, ALL_REDUCE)), 7)

    def test_buffer_broadcasts_in_inference_mode_are_recorded(self):
        o = self.run_job(
            """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)))
wrapped = time.monotonic_ns()
with torch.inference_mode():
    model(torch.ones(2, 3))  # evaluates
dist.all_reduce(torch.ones(2))
dist.broadcast(torch.ones(2), 0)
"""
        )
        line = o.line("evaluates")
        self.assertGreater(len([r for r in self.issued(o.box, BROADCAST) if r.site[1] == line]), 0)
        # Calls from Python are still recorded once.
        self.assertEqual([r.op for r in self.issued(o.box)][-2:], [ALL_REDUCE, BROADCAST])
        self.assertEqual(len(self.issued(o.box, ALL_REDUCE)), 1)

    def test_functional_collectives_are_recorded(self):
        o = self.run_job(
            """
import torch.distributed._functional_collectives as fc
def reduce(x):
    return fc.all_reduce(x, "sum", dist.group.WORLD) + 1
compiled = torch.compile(reduce, backend="aot_eager")
for _ in range(3):
    assert reduce(torch.ones(2)).tolist() == [2, 2]
    assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
    with torch.inference_mode():
        assert reduce(torch.ones(4)).tolist() == [2, 2, 2, 2]
dist.all_reduce(torch.ones(5))
"""
        )
        shapes = [r.shape for r in self.issued(o.box, ALL_REDUCE)]
        self.assertEqual(shapes, [[2], [3], [4]] * 3 + [[5]])

    def test_calls_of_compiled_programs_are_recorded(self):
        o = self.run_job(
            """
def step(x):
    y = x * 2
    dist.all_reduce(y)
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1
compiled = torch.compile(step, backend="eager")
for size in (2, 2, 3):
    assert compiled(torch.ones(size)).tolist() == [3] * size
"""
        )
        self.assertEqual(len(self.issued(o.box, ALL_REDUCE)), 6)

    def test_ddp_runs_with_every_option(self):
        o = self.run_job(
            """
from torch.distributed.algorithms.join import Join
wrap = torch.nn.parallel.DistributedDataParallel
def train(model, inputs=None):
    for _ in range(3):
        model(torch.ones(2, 3) if inputs is None else inputs).sum().backward()
train(wrap(torch.nn.Linear(3, 2)))
train(wrap(torch.nn.Linear(3, 2), static_graph=True))
train(wrap(torch.nn.Linear(3, 2), find_unused_parameters=True, gradient_as_bucket_view=True))
train(wrap(torch.nn.EmbeddingBag(4, 2, sparse=True)), torch.tensor([[0, 1], [2, 3]]))
hooked = wrap(torch.nn.Linear(3, 2))
def averages(state, bucket):  # without a callback, which a thread of Gloo's might call while the interpreter ends
    dist.all_reduce(bucket.buffer())
    averaged = torch.futures.Future()
    averaged.set_result(bucket.buffer())
    return averaged
hooked.register_comm_hook(None, averages)
train(hooked)
joined = wrap(torch.nn.Linear(3, 2))
with Join([joined]):
    train(joined)
with joined.no_sync():
    train(joined)
"""
        )
        calls = self.issued(o.box, ALL_REDUCE)
        self.assertTrue(any(r.flags & b.HIDDEN for r in calls))
        # Five models average three times each; Join adds calls of its own, no_sync none.
        self.assertGreaterEqual(len(calls), 15)

    def test_sharded_tensors_record_gathers(self):
        o = self.run_job(
            """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (world,))
try:
    from torch.distributed.tensor import Shard, Replicate, distribute_tensor
except ImportError:
    from torch.distributed._tensor import Shard, Replicate, distribute_tensor
sharded = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
assert sharded.redistribute(mesh, [Replicate()]).to_local().shape == (4, 2)
with torch.inference_mode():
    try:
        assert sharded.redistribute(mesh, [Replicate()]).to_local().shape == (4, 2)
    except RuntimeError as error:  # Gloo of 2.4, also without capture
        assert "inference tensor" in str(error), error
""",
            2,
        )
        for box in o.boxes:
            gathers = self.issued(box, ALL_GATHER, ALL_GATHER_COALESCED)
            self.assertEqual([r.shape for r in gathers], [[2, 2]] * 2)

    def test_programs_can_replace_the_same_functions(self):
        o = self.run_job(
            """
original = dist.ProcessGroup.allreduce
seen = []
def allreduce(self, *args, **kwargs):
    seen.append(1)
    return original(self, *args, **kwargs)
dist.ProcessGroup.allreduce = allreduce
dist.all_reduce(torch.ones(1))
assert seen == [1]
dist.ProcessGroup.allreduce = original
kernels = torch.library.Library("c10d", "IMPL")
def kernel(*args):
    seen.append(2)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.c10d.allreduce_(*args)
kernels.impl("allreduce_", kernel, "AutogradCPU")
dist.all_reduce(torch.ones(2))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
model(torch.ones(1, 3)).sum().backward()
assert 2 in seen
"""
        )
        shapes = [r.shape for r in self.issued(o.box, ALL_REDUCE)]
        self.assertEqual(shapes[:2], [[1], [2]])

    def test_subclasses_call_the_originals(self):
        code = """
class Group(dist.ProcessGroup):
    pass
class WithOverride(dist.ProcessGroup):
    def allreduce(self, tensors, *options):
        return super().allreduce(tensors, *options)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
kind = dist.ProcessGroup.BackendType.GLOO
for group in (Group(0, 1), WithOverride(0, 1)):
    group._register_backend(torch.device("cpu"), kind, backend)
    group._set_default_backend(kind)
    group.allreduce([torch.ones(1)]).wait()
class Work(dist.Work):
    pass
try:
    Work().get_future()
except RuntimeError as error:
    assert "not implemented" in str(error), error
"""
        for native in "01":
            self.run_job(code, DDP_DOCTOR_NATIVE_HOOKS=native)

    def test_replacements_by_the_program_are_kept(self):
        self.run_job(
            """
dist.all_reduce(torch.ones(1))
assert seen == ["allreduce"], seen
from ddp_doctor._c10d import _extension
assert _extension.loaded is not None
""",
            head="""
import os, torch, torch.distributed as dist
seen = []
def replace(kind, name):
    original = getattr(kind, name)
    def replacement(self, *args, **kwargs):
        seen.append(name)
        return original(self, *args, **kwargs)
    setattr(kind, name, replacement)
replace(dist.ProcessGroup, "allreduce")
dist.init_process_group("gloo")
""",
        )

    def test_late_enable_intercepts_existing_groups(self):
        o = self.run_job(
            """
group = dist.new_group([0])
bound = group.allreduce
import ddp_doctor
ddp_doctor.enable()
bound([torch.ones(3)]).wait()
dist.all_reduce(torch.ones(4), group=group)
""",
            PYTHONPATH=PACKAGE,
        )
        self.assertEqual([r.shape for r in self.issued(o.box, ALL_REDUCE)], [[3], [4]])

    def test_forked_child_and_pickled_names_work(self):
        o = self.run_job(
            """
assert pickle.loads(pickle.dumps(dist.ReduceOp.SUM)) == dist.ReduceOp.SUM
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
dist.all_reduce(torch.ones(1))
"""
        )
        self.assertEqual(len(self.issued(o.box, ALL_REDUCE)), 1)

    def test_rpc_works_beside_interception(self):
        self.run_job(
            """
import torch.distributed.rpc as rpc
rpc.init_rpc("worker%d" % rank, rank=rank, world_size=world)
assert rpc.rpc_sync("worker0", torch.add, (torch.ones(1), 1)).item() == 2
dist.all_reduce(torch.ones(1))
rpc.shutdown()
""",
            2,
        )

    def test_errors_are_raised_and_end_their_call(self):
        o = self.run_job(
            """
pg = dist.group.WORLD
for call in (lambda: pg.allreduce(), lambda: pg.allreduce("no tensor"), lambda: pg.send([torch.ones(1)], 0)):
    try:
        call()
    except (TypeError, RuntimeError):
        pass
    else:
        raise AssertionError("no error")
dist.all_reduce(torch.ones(2))
"""
        )
        self.assertEqual(self.issued(o.box, ALL_REDUCE)[-1].shape, [2])

    def test_missing_dispatcher_functions_are_noted(self):
        outcome = job(
            """
import torch, torch.distributed as dist
torch._C._dispatch_library = None  # another tool's doing
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
""",
            DDP_DOCTOR_CAPTURE="interception",
        )
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)
        (note,) = outcome.box.of("note")
        self.assertIn("are not captured", note.text)


if __name__ == "__main__":
    unittest.main()
