"""Records the GPU memory held by PyTorch.

This module never initializes CUDA.
"""

import ctypes
import sys
import time

from .. import _box
from .._native import MemorySample, UNKNOWN

# Minimum interval of samples in seconds; minimum change that is recorded: the larger of 4 MiB and 1/200.
_EVERY = 0.1
_STEP = 4 << 20
_SHARE = 200
_clock = time.monotonic
_next = 0.0
# Device → values that were recorded last.
_last_sample = {}
# Device → total bytes.
_totals = {}
# Paths in the allocator's statistics, in the order of the fields of a sample.
_SIZES = (
    ("allocated_bytes", "all", "current"),
    ("reserved_bytes", "all", "current"),
    ("allocated_bytes", "all", "peak"),
    ("inactive_split_bytes", "all", "current"),
)
_COUNTS = (("num_alloc_retries",), ("num_ooms",))

# The largest free block is found only by a snapshot of all blocks, during which PyTorch holds the GIL and the
# allocator's lock. It may take one thousandth of the time. A snapshot of more blocks than this is not taken …
_MAX_BLOCKS = 2_000
# … except after the allocator ran out of memory, which is more expensive by itself.
_MAX_BLOCKS_AT_SHORTAGE = 20_000
_BLOCKS = (("active", "all", "current"), ("inactive_split", "all", "current"), ("segment", "all", "current"))
_SNAPSHOT_SHARE = 1000
_next_snapshot = 0.0
# Maximum number of snapshots after failed allocations, for programs that fail often and retry.
_MOST_FAILURES = 16
_failures = 0


def _at(statistics, path):
    for name in path:
        statistics = statistics.get(name) if isinstance(statistics, dict) else None
    return UNKNOWN if statistics is None else statistics


def _total(cuda, device):
    """Total bytes of a device. PyTorch has cached its properties."""
    if device not in _totals:
        _totals[device] = UNKNOWN
        _totals[device] = cuda.get_device_properties(device).total_memory
    return _totals[device]


def _differs(values, last):
    """Whether a size has changed enough to be recorded, or any count has changed."""
    pairs = list(zip(values, last))
    sizes, counts = pairs[: len(_SIZES)], pairs[len(_SIZES) :]
    return any(abs(a - b) >= max(_STEP, b // _SHARE) for a, b in sizes) or any(a != b for a, b in counts)


def sample():
    """Records a sample if the interval is over and the values have changed. Called at steps and after the record of
    a call; never raises."""
    global _next
    at = _clock()
    if at < _next:
        return
    _next = at + _EVERY
    cuda = sys.modules.get("torch.cuda")
    try:
        if cuda is not None and _box.is_open and cuda.is_initialized():
            _sample(cuda, at)
    except Exception:
        pass


def failed(exception):
    """Records a sample after an out-of-memory error, before the program handles it. Never raises."""
    global _failures
    cuda = sys.modules.get("torch.cuda")
    try:
        if cuda is None or not isinstance(exception, cuda.OutOfMemoryError):
            return
        if cuda.is_initialized() and _failures < _MOST_FAILURES:
            _failures += 1
            _sample(cuda, None)
    except Exception:
        pass


def _sample(cuda, at):
    """Reads the statistics, for which PyTorch briefly takes the allocator's lock, as for every allocation, and does
    not access the device. `at`: time of a step or call; None: an allocation has failed."""
    device = cuda.current_device()
    statistics = cuda.memory_stats_as_nested_dict(device)
    values = [_at(statistics, path) for path in _SIZES + _COUNTS]
    last = _last_sample.get(device)
    if at is not None and last is not None and not _differs(values, last):
        return
    _last_sample[device] = values
    is_short = at is None or _has_run_short(values, last)
    largest = _largest_free(cuda, device, statistics, is_short) if at is None or at >= _next_snapshot else UNKNOWN
    record = MemorySample(ctypes.sizeof(MemorySample), device, UNKNOWN, _total(cuda, device), *values, largest)
    _box.lib.memory(ctypes.byref(record))


def _has_run_short(values, last):
    """Whether an allocation failed or was retried since the values `last` were recorded."""
    counts = slice(len(_SIZES), None)
    return last is not None and any(UNKNOWN > a > b for a, b in zip(values[counts], last[counts]))


def _largest_free(cuda, device, statistics, is_short):
    """Bytes of the largest free block that the allocator holds. Does not access the device."""
    global _next_snapshot
    try:
        most = _MAX_BLOCKS_AT_SHORTAGE if is_short else _MAX_BLOCKS
        if sum(_at(statistics, path) for path in _BLOCKS) > most:
            return UNKNOWN
        # With memory history enabled, the snapshot would include the history, at an unknown cost.
        if sys.modules["torch"]._C._cuda_isHistoryEnabled():
            return UNKNOWN
        begin = _clock()
        try:
            segments = cuda.memory_snapshot(include_traces=False)
        except TypeError:  # PyTorch 2.10 and older, without traces
            segments = cuda.memory_snapshot()
        # Other pools belong to captured graphs and serve no other allocations.
        pieces = (
            block["size"]
            for segment in segments
            if segment["device"] == device and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
            for block in segment["blocks"]
            if block["state"] == "inactive"
        )
        largest = max(pieces, default=0)
        end = _clock()
        _next_snapshot = end + _SNAPSHOT_SHARE * (end - begin)
        return largest
    except Exception:  # an allocator without such blocks
        return UNKNOWN


def _reset():
    global _next, _next_snapshot, _failures
    _next = _next_snapshot = 0.0
    _failures = 0
    _last_sample.clear()
    _totals.clear()


_box.on_reset.append(_reset)
