"""Models, gradients and inputs in the black boxes of real programs."""

import unittest

from support import boxreader as b
from support.boxreader import ALL_REDUCE
from support import CaptureTest


class Models(CaptureTest):
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

    def test_all_missing_gradients_are_counted(self):
        """PyTorch lists the first 100 of them."""
        o = self.run_job(
            """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.rest = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(1)) for _ in range(2500))
        self.last = torch.nn.Linear(2, 2)
    def forward(self, inputs, everything):
        output = self.last(self.first(inputs)).sum()
        return output + sum(self.rest) if everything else output
for first in (False, True):
    model = torch.nn.parallel.DistributedDataParallel(Model())
    if first:
        model(torch.ones(1, 2), True).backward()
    model(torch.ones(1, 2), False).backward()
"""
        )
        never, later = [r for r in o.box.of("parameters") if r.code not in (1, 8, 9)]
        self.assertEqual((never.numel, never.text.endswith("...\n")), (2500, False))
        self.assertEqual((later.numel, later.text.endswith("...\n")), (100, True))

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

    def test_gradients_of_thawed_parameters_are_recorded_once_unless_another_model_averages_them(self):
        job = """
frozen, head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
frozen.requires_grad_(False)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(frozen, head))
def steps(times):
    for _ in range(times):
        model.zero_grad()
        model(torch.ones(1, 3)).sum().backward()  # thawed
steps(3)
frozen.requires_grad_(True)
%s
steps(8)
"""
        o = self.run_job(job % "")
        (said,) = [r for r in o.box.of("parameters") if r.code not in (1, 9)]
        self.assertEqual((said.code, said.numel, said.site[1]), (10, 2, o.line("thawed")))
        self.assertEqual(said.text, "float32 2,3 0.weight\nfloat32 2 0.bias\n")
        o = self.run_job(job % "other = torch.nn.parallel.DistributedDataParallel(frozen)")
        self.assertNotIn(10, [r.code for r in o.box.of("parameters")])

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

    REPLICAS = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(3, 2) for _ in range(1))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(3):
    with model.no_sync():
        model(torch.ones(1, 3)).sum().backward()  # forward
    model(torch.ones(1, 3)).sum().backward()
    model(torch.ones(1, 3))
    optimizer.step()
"""

    def test_elements_are_recorded_before_the_first_forward_and_after_each_average(self):
        o = self.run_job(self.REPLICAS, ranks=2)
        for box in o.boxes:
            read = [r for r in box.of("parameters") if r.code == 9]
            # Two parameters each time: weight and bias.
            self.assertEqual([(r.numel, r.tensors) for r in read], [(n, i) for n in range(4) for i in (0, 1)])
            self.assertEqual(read[0].site[1], o.line("forward"))
        first, second = ([(r.text, r.shape) for r in box.of("parameters") if r.code == 9] for box in o.boxes)
        self.assertEqual(first, second)
        self.assertEqual(len(first[0][1]), 6)
        o = self.run_job(self.REPLICAS, ranks=2, DDP_DOCTOR_FINGERPRINT="0")
        self.assertEqual([r for box in o.boxes for r in box.of("parameters") if r.code == 9], [])

    def test_only_elements_in_host_memory_are_read(self):
        self.run_job(
            """
import struct
from ddp_doctor._ddp import _replicas
_replicas._prepare()
P = torch.nn.Parameter
def read(parameter, rounds=0):
    found = _replicas._read(parameter, rounds)
    return found and found[1]
bits = lambda kind, *values: list(struct.unpack("<%dI" % len(values), struct.pack("<%d%s" % (len(values), kind), *values)))
assert read(P(torch.arange(20.0)), 0) == bits("f", *range(0, 16, 2))
assert read(P(torch.arange(20.0)), 3) == bits("f", *range(1, 17, 2))
assert read(P(torch.tensor(2.5))) == bits("f", 2.5)
assert read(P(torch.arange(5.0)[3:])) == bits("f", 3, 4)
assert read(P(torch.tensor([1.5], dtype=torch.float64))) == [0x3FF80000]
assert read(P(torch.tensor([1.5, -1.5], dtype=torch.bfloat16))) == [0x3FC0, 0xBFC0]
assert read(P(torch.tensor([1.5], dtype=torch.float16))) == [0x3E00]
freed = P(torch.ones(4))
freed.untyped_storage().resize_(0)
transposed = P(torch.ones(2, 3).t())
sparse = P(torch.ones(2, 2).to_sparse())
empty, meta, whole = P(torch.ones(0)), P(torch.ones(3, device="meta")), P(torch.ones(3).int(), requires_grad=False)
for other in (None, torch.ones(3), freed, transposed, sparse, empty, meta, whole):
    assert read(other) is None, other
"""
        )

    def test_models_are_not_kept_alive(self):
        self.run_job(
            """
import gc, weakref
from ddp_doctor._ddp import _parameters
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

    def test_last_batch_is_recorded_when_it_is_drawn(self):
        o = self.run_job(
            """
class Loader(torch.utils.data.DataLoader):
    pass
class Sampler(torch.utils.data.SequentialSampler):
    def __len__(self):
        raise RuntimeError("would compute all batches")
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([1, 2])
data = torch.ones(6, 2)
shards = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0)
loaders = [
    Loader(data, batch_size=4),
    Loader(data, batch_size=4, shuffle=True, drop_last=True, num_workers=1),
    Loader(data, batch_size=None, sampler=shards),
    Loader(data, sampler=Sampler(data), batch_size=2),
    Loader(Stream(), batch_size=2),
]
for loader, number in zip(loaders, (2, 1, 6, 2, 1)):
    batches = iter(loader)
    for _ in range(number):
        next(batches)  # draw
for batch in Loader(data, batch_size=4):  # both
    pass
""",
            forked=False,
        )
        ends = [(r.numel if r.flags & b.NUMEL else None, r.site[1]) for r in o.box.of("input-ended")]
        draw, both = o.line("draw"), o.line("both")
        # Batches of one line are counted together.
        self.assertEqual(ends, [(2, draw), (3, draw), (9, draw), (2, both), (None, both)])

    def test_forwards_note_whether_parameters_were_updated(self):
        o = self.run_job(
            """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    (model(torch.ones(3, 2)).sum() + model(torch.zeros(3, 2)).sum()).backward()
    optimizer.step()
""",
            forked=False,
        )
        flags = [s.flags & (b.SEES_UPDATES | b.UPDATED) for s in o.box.of("step")]
        same, new = b.SEES_UPDATES, b.SEES_UPDATES | b.UPDATED
        self.assertEqual(flags, [0, same, new, same, new, same])

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


if __name__ == "__main__":
    unittest.main()
