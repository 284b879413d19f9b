"""Memory samples, GPUs and failed allocations in the black boxes of real programs."""

import sys
import unittest

from support import CaptureTest


class Memory(CaptureTest):
    def test_versions_and_memory_samples_are_recorded(self):
        o = self.run_job(
            """
import ddp_doctor
from ddp_doctor._process import _memory
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
assert looks == 1
ddp_doctor.step()  # too early for another sample
_memory._next_snapshot = float("inf")  # the snapshot took long
for more in (1 << 20, 1 << 28):  # not worth one, worth one
    held["allocated_bytes"]["all"]["current"] += more
    at_a_step()
assert looks == 1
_memory._next_snapshot = 0.0
at_a_step(num_alloc_retries=1)
_memory._next_snapshot = float("inf")
at_a_step(num_alloc_retries=2)  # too early for another look
_memory._next_snapshot = 0.0
at_a_step(num_alloc_retries=3, active=size(20_000, 0))  # too many pieces
_memory._next_snapshot = 0.0
torch._C._cuda_isHistoryEnabled = lambda: True
at_a_step(num_alloc_retries=4, active=size(3, 0))  # each with its history
torch._C._cuda_isHistoryEnabled = lambda: False
assert looks == 2
def refuses(**how):
    raise RuntimeError("an allocator without pieces")
torch.cuda.memory_snapshot = refuses
_memory._next_snapshot = 0.0
at_a_step(num_ooms=1)
torch.cuda.memory_snapshot = snapshot
segments = []
_memory._next_snapshot = 0.0
at_a_step(num_ooms=2)  # nothing is free
assert looks == 3
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
            [1, unknown, 80 << 30, 1 << 30, *rest, 0, 0, 7 << 20],
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

    def test_calls_without_steps_are_sampled_without_device_calls(self):
        program = """
from ddp_doctor._process import _memory
class Properties:
    total_memory = 80 << 30
size = lambda current: {"all": {"current": current, "peak": current}}
held = {"allocated_bytes": size(0), "reserved_bytes": size(8 << 30)}
held.update(dict.fromkeys(("active", "inactive_split", "segment"), size(3)))
piece = lambda mib: {"state": "inactive", "size": mib << 20}
def refuse(*arguments, **keywords):
    raise AssertionError("a device call")
for name in ("mem_get_info", "synchronize", "empty_cache", "max_memory_allocated"):
    setattr(torch.cuda, name, refuse)
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.memory_stats_as_nested_dict = lambda device: held
torch.cuda.get_device_properties = lambda device: Properties
torch.cuda.memory_snapshot = lambda **how: [{"device": 0, "blocks": [piece(3), piece(9)]}]
torch._C._cuda_isHistoryEnabled = lambda: False
# On a busy machine, a snapshot may take so long that the next one is not due during the job.
_memory._SNAPSHOT_SHARE = 0
started = time.monotonic()
calls = 0
while time.monotonic() - started < 1.0:
    held["allocated_bytes"] = size((1 + calls) << 30)
    dist.all_reduce(torch.ones(1))
    calls += 1
    time.sleep(0.01)
assert calls > 20
"""
        for native in ("1", "0"):
            with self.subTest(native=native):
                o = self.run_job(program, DDP_DOCTOR_NATIVE_HOOKS=native)
                samples = [record for record in o.box.of("memory")]
                self.assertIn(len(samples), range(4, 12))
                for record in samples:
                    self.assertEqual((record.memory[4], record.memory[9]), (8 << 30, 9 << 20))
                kinds = [record.kind for record in o.box.of("memory", "issued")]
                after = [before for before, kind in zip(kinds, kinds[1:]) if kind == "memory"]
                self.assertEqual(set(after), {"issued"}, "each sample follows the record of a call")

    def test_gpu_is_recorded_only_if_the_program_names_a_device(self):
        o = self.run_job(
            """
from ddp_doctor._c10d import _init
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

    def test_address_is_recorded_without_user_and_password(self):
        o = self.run_job(
            """
from ddp_doctor._c10d import _init
for given, recorded in (
    ("etcd://trainer:secret@etcd0:2379/job?rank=0", "etcd://etcd0:2379/job"),
    ("etcd://trainer:sec/ret@etcd0:2379/job", "etcd://etcd0:2379/job"),
    ("file:///home/me@site/store", "file:///home/me@site/store"),
):
    assert _init._meeting(given, None) == (recorded, ""), given

from ddp_doctor._native import text
for given, kept in (
    ("see https://bob:PASS", b"see https://"),
    ("see https://PASS", b"see https://"),
    ("see https://bob:PASS@hub/a", b"see https://bob:PASS@hub/a"),
    ("see https://hub and", b"see https://hub and"),
):
    assert text(given + "WORD", len(given)).data == kept, given
"""
        )
        self.assertEqual(o.box.of("exception"), [])

    def test_out_of_memory_records_limited_samples(self):
        o = self.run_job(
            """
from ddp_doctor import _words
from ddp_doctor._process import _exceptions, _memory
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
"""
        )
        said = [record.kind for record in o.box.of("memory", "exception")]
        self.assertEqual(said[:4], ["exception", "exception", "memory", "exception"])
        samples = [record.memory for record in o.box.of("memory")]
        self.assertEqual(len(samples), 16)
        for sample in samples:
            self.assertEqual((sample[0], sample[3], sample[9]), (0, 1 << 30, 5 << 20))


if __name__ == "__main__":
    unittest.main()
