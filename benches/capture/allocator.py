"""Measures what sampling PyTorch's allocator costs a training step: the check in every step, and the sample that
is taken once a second.

Without a GPU the allocator's statistics come from a stand-in of the same size.

    python benches/capture/allocator.py

Needs PyTorch and the release build.
"""

import argparse
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import PACKAGE, best, built, machine  # noqa: E402


def statistics_of_a_stand_in():
    pools = ("all", "large_pool", "small_pool")
    sizes = ("current", "peak", "allocated", "freed")
    names = "allocated_bytes reserved_bytes active_bytes inactive_split_bytes requested_bytes allocation segment active inactive_split"
    held = {name: {pool: dict.fromkeys(sizes, 1 << 30) for pool in pools} for name in names.split()}
    held.update(num_alloc_retries=0, num_ooms=0, max_split_size=-1)
    for counted in ("active", "inactive_split", "segment"):
        held[counted] = {"all": {"current": 10}}
    return held


def snapshot_of_a_stand_in(pieces):
    """A snapshot like PyTorch's: a dictionary for each of these pieces, in twenty segments."""
    piece = lambda at: {
        "address": at << 20,
        "size": 1 << 20,
        "requested_size": 1 << 20,
        "state": "inactive" if at % 3 == 0 else "active_allocated",
    }
    made = range(0, pieces, pieces // 20)
    return [
        {"device": 0, "segment_pool_id": (0, 0), "blocks": [piece(at) for at in range(first, first + pieces // 20)]}
        for first in made
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: a smoke test without meaningful results")
    options = parser.parse_args()
    repeat, number = (1, 100) if options.quick else (7, 20000)
    scratch = tempfile.TemporaryDirectory()
    os.environ.update(DDP_DOCTOR_JOB="bench", DDP_DOCTOR_BOX_DIR=scratch.name, OMP_NUM_THREADS="1")
    os.environ.setdefault("DDP_DOCTOR_LIBRARY", "")
    os.environ["DDP_DOCTOR_LIBRARY"] = os.environ["DDP_DOCTOR_LIBRARY"] or built("libddp_doctor.so")
    sys.path.insert(0, PACKAGE)
    import ddp_doctor

    ddp_doctor.enable()
    import torch
    import torch.distributed as dist
    from ddp_doctor._process import _memory

    print(machine())
    dist.init_process_group("gloo", init_method="file://" + scratch.name + "/store", rank=0, world_size=1)
    _memory.sample()
    print("a call or a step without a due sample: %.2f us" % best(_memory.sample, number, repeat))

    def due():
        _memory._next = 0.0
        _memory.sample()

    print("every 100 ms, without a GPU in use: %.2f us" % best(due, number, repeat))
    if not torch.cuda.is_available():
        print("(no GPU: a stand-in for PyTorch's statistics)")
        torch.cuda.is_initialized = lambda: True
        torch.cuda.current_device = lambda: 0
        torch.cuda.memory_stats_as_nested_dict = lambda device: statistics_of_a_stand_in()
        torch.cuda.get_device_properties = lambda device: type("Properties", (), {"total_memory": 80 << 30})
    else:
        torch.ones(1, device="cuda")
    print("every 100 ms, nothing has changed: %.2f us" % best(due, number // 20, repeat))

    # Snapshots are measured below.
    _memory._next_snapshot = float("inf")

    def changed():
        _memory._last_sample.clear()
        due()

    print("every 100 ms, something has changed: %.2f us" % best(changed, number // 20, repeat))
    if not torch.cuda.is_available():
        torch._C._cuda_isHistoryEnabled = lambda: False
    for pieces in (200, 2_000, 20_000):
        making = best(lambda: snapshot_of_a_stand_in(pieces), max(1, number * 10 // pieces), repeat)
        made = snapshot_of_a_stand_in(pieces)
        torch.cuda.memory_snapshot = lambda **how: made
        look = lambda: _memory._largest_free(torch.cuda, 0, statistics_of_a_stand_in(), True)
        assert look() == 1 << 20
        looking = best(look, max(1, number * 10 // pieces), repeat)
        print(
            "a snapshot of %d blocks: %.0f us, and about %.0f us in which PyTorch makes them (by Python)"
            % (pieces, looking, making)
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
