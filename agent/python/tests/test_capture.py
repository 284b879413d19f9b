"""Calls, waits and groups in the black boxes of real Gloo programs with one or two ranks."""

import os
import unittest

from support import boxreader as b
from support.boxreader import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    COALESCED,
    DESTROY,
    INIT,
    MONITORED,
    NEW_GROUP,
    RECV,
    REDUCE_SCATTER,
    SEND,
    SPLIT,
)
from support import HEAD, PACKAGE, CaptureTest, environment, free_port, job, python


class Capture(CaptureTest):
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
        self.assertEqual([r.call for r in o.box.of("returned")][1:3], [first.call, second.call])
        self.assertEqual([r.text for r in o.box.of("exit")], ["main returned"])
        self.assertEqual(o.box.rank, 0)
        self.assertEqual(o.box.layer, "c10d")

    def test_subclasses_are_recorded_with_the_data_that_is_exchanged(self):
        o = self.run_job(
            """
used = []
class Ragged(torch.Tensor):
    shape = property(lambda self: torch.Size([1]))
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        used.append(getattr(func, "__qualname__", repr(func)))
        return super().__torch_function__(func, types, args, kwargs or {})
t = torch.ones(4, 3).as_subclass(Ragged)
dist.broadcast(t, 0)
dist.all_reduce(t)
print("used:", [name for name in used if "shape" in name or "dtype" in name or "__get__" in name])
"""
        )
        shapes = [call.shape for op in (BROADCAST, ALL_REDUCE) for call in self.issued(o.box, op)]
        self.assertEqual(shapes, [[4, 3], [4, 3]])
        self.assertIn("used: []", o.outputs[0])

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
dist.all_to_all_single(torch.ones(4, 2), torch.ones(4, 2), [2, 2], [2, 2])
attempt(dist.all_to_all, [torch.ones(3), torch.ones(3)], [torch.ones(3), torch.ones(3)])
dist.all_to_all_single(torch.ones(8), torch.ones(8))
dist.broadcast(t, 1)
dist.scatter(t, [t, t] if rank == 0 else None, 0)
dist.gather(t, [t, t.clone()] if rank == 1 else None, 1)
with dist._coalescing_manager():
    dist.all_reduce(t, op=dist.ReduceOp.PRODUCT)
    dist.all_reduce(torch.ones(2, 2), op=dist.ReduceOp.PRODUCT)
dist.barrier()
""",
            2,
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
                    (ALL_TO_ALL, [4, 2], 0, 1),
                    (ALL_TO_ALL, [3], 0, 2),
                    (ALL_TO_ALL, [8], 0, 1),
                    (BROADCAST, [4], 0, 1),
                    (9, [4], 0, 1),
                    (8, [4], 0, 1),
                    (COALESCED, [4], 3, 2),
                    (BARRIER, None, 0, 0),
                ],
            )
            # In elements, also for lists of tensors.
            self.assertEqual([s.sizes for s in box.of("splits")], [[4, 4], [4, 4], [3, 3], [3, 3], [8], [8]])
            self.assertEqual([s.flags & b.OUTPUT for s in box.of("splits")], [0, b.OUTPUT] * 3)
            self.assertEqual([r.root for r in self.issued(box) if r.flags & b.ROOT], [1, 0, 1])

    def test_splits_of_a_call_from_cpp_are_not_guessed(self):
        o = self.run_job(
            """
import torch.distributed._functional_collectives as funcol
own = [1, 3] if rank == 0 else [3, 1]
funcol.all_to_all_single(torch.ones(4), own, own, dist.group.WORLD).sum().item()
""",
            2,
        )
        for box in o.boxes:
            self.assertEqual([r.shape for r in self.issued(box, ALL_TO_ALL)], [[4]])
            own = [1, 3] if box.rank == 0 else [3, 1]
            # The hooks of PyTorch do not say them.
            self.assertIn([s.sizes for s in box.of("splits")], ([], [own, own]))

    def test_coalesced_calls_are_recorded_as_one(self):
        o = self.run_job(
            """
def attempt(call):
    try:
        call()
    except RuntimeError as error:  # Gloo had no such collective
        assert "support" in str(error), error
def gather():
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(torch.ones(8), t)
        dist.all_gather_into_tensor(torch.ones(8), t)
def scatter():
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(torch.ones(4), torch.ones(8))
        dist.reduce_scatter_tensor(torch.ones(4), torch.ones(8))
t = torch.ones(4)
dist.all_gather_coalesced([[torch.ones(4), torch.ones(3)] for _ in range(2)], [t, torch.ones(3)])
dist.all_reduce_coalesced([t, torch.ones(2, 2)])
attempt(gather)
attempt(scatter)
""",
            2,
        )
        for box in o.boxes:
            calls = [(r.op, r.shape, r.reduce_op, r.tensors) for r in self.issued(box) if r.op < 32]
            self.assertEqual(
                calls,
                [
                    (b.GATHER_COALESCED, [4], 0, 2),
                    (COALESCED, [4], 1, 2),
                    (b.GATHER_COALESCED, [4], 0, 2),
                    (b.SCATTER_COALESCED, [4], 1, 2),
                ],
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
            self.assertEqual((last.name, last.epoch, last.destroyed), ("0", 1, True))
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

    def test_monitored_barrier_is_a_collective_of_its_group(self):
        o = self.run_job(
            """
dist.barrier()
dist.monitored_barrier()  # here
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    try:
        dist.monitored_barrier(timeout=__import__("datetime").timedelta(milliseconds=200))  # alone
    except RuntimeError as error:
        print(error)
    store.set("raised", "")
    store.wait(["seen"])
else:
    store.wait(["raised"])
    store.set("seen", "")
""",
            2,
        )
        found = [self.issued(box, MONITORED) for box in o.boxes]
        self.assertEqual([[call.seq for call in calls] for calls in found], [[2, 3], [2]])
        box, (first, alone) = o.boxes[0], found[0]
        self.assertEqual((first.site[1], alone.site[1], first.group), (o.line("here"), o.line("alone"), 1))
        waits = [w for w in box.of("wait-begin") if w.call in (first.call, alone.call)]
        self.assertEqual([w.site[1] for w in waits], [o.line("here"), o.line("alone")])
        self.assertEqual(len([w for w in box.of("wait-end") if w.call in (first.call, alone.call)]), 2)
        self.assertIn("failed to pass monitoredBarrier", o.outputs[0])

    def test_calls_of_threads_record_their_sites(self):
        o = self.run_job(
            """
pg = dist.group.WORLD
t = torch.ones(2)
_thread.start_new_thread(pg.allreduce, ([t],)); time.sleep(0.5)  # borrowed
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

    def test_graph_breaks_where_it_does_without_capture(self):
        code = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
compiled = torch.compile(model, backend="eager")
for i in range(2):
    compiled(torch.ones(1, 3)).sum().backward()
from torch._dynamo.utils import counters
print("counted", counters["frames"]["total"], sum(counters["graph_break"].values()))
"""
        o = self.run_job(code, forked=False)
        self.assertEqual(len(o.box.of("step")), 2)
        rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        plain = python(HEAD + code, env=environment(PYTHONPATH=None, DDP_DOCTOR_JOB=None, **rank))
        counted = [
            line for output in (o.outputs[0], plain.stdout) for line in output.splitlines() if line.startswith("counted")
        ]
        self.assertEqual(len(counted), 2, (o.outputs, plain.stdout, plain.stderr))
        self.assertEqual(counted[0], counted[1])


if __name__ == "__main__":
    unittest.main()
