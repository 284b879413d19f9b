"""What PyTorch holds on the GPU, and the versions that ranks should share.

CUDA is never initialised here: a process that does not use it stays one that does not.
"""

import ctypes
import sys
import time

from . import _box
from ._native import MemorySample, UNKNOWN, text

# Seconds between two samples, and what is worth one.
_EVERY = 1.0
_STEP = 4 << 20
_SHARE = 200
_next = 0.0
# Device → what was said of it last.
_told = {}
# Device → the bytes that it has.
_totals = {}
# What is said of the allocator, in the order of the sample: where it stands in its statistics.
_SIZES = (
    ("allocated_bytes", "all", "current"),
    ("reserved_bytes", "all", "current"),
    ("allocated_bytes", "all", "peak"),
    ("inactive_split_bytes", "all", "current"),
)
_COUNTS = (("num_alloc_retries",), ("num_ooms",))

# The largest piece that is free no counter has: all pieces have to be looked at. PyTorch holds the interpreter's lock
# and its allocator's while it makes a dictionary of each. So it is done where the allocator has just run short, which
# cost more by itself, and not where there are more pieces than …
_MOST_PIECES = 20_000
_PIECES = (("active", "all", "current"), ("inactive_split", "all", "current"), ("segment", "all", "current"))
# … nor at a step sooner than so many seconds after the one before, …
_LOOK_EVERY = 10.0
_next_look = 0.0
# … nor after more allocations that failed than a program has which does not live by them.
_MOST_FAILURES = 16
_failures = 0


def _at(statistics, path):
    for name in path:
        statistics = statistics.get(name) if isinstance(statistics, dict) else None
    return UNKNOWN if statistics is None else statistics


def _total(cuda, device):
    """Bytes of a device. PyTorch has its properties at hand once it uses it."""
    if device not in _totals:
        _totals[device] = UNKNOWN
        _totals[device] = cuda.get_device_properties(device).total_memory
    return _totals[device]


def _differs(values, told):
    """Whether a size has changed noticeably, or a count at all."""
    pairs = list(zip(values, told))
    sizes, counts = pairs[: len(_SIZES)], pairs[len(_SIZES) :]
    return any(abs(a - b) >= max(_STEP, b // _SHARE) for a, b in sizes) or any(a != b for a, b in counts)


def sample(now=time.monotonic):
    """Says what the allocator holds now, if it is time and that is news. Called at steps; never raises."""
    global _next
    at = now()
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
    """Says what the allocator holds while what it had to refuse is not given up yet. Never raises."""
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
    """One call of PyTorch's, which takes the allocator's lock for as long as it copies its counters. `at`: the time of
    a step; None: an allocation has failed."""
    global _next_look
    device = cuda.current_device()
    statistics = cuda.memory_stats_as_nested_dict(device)
    values = [_at(statistics, path) for path in _SIZES + _COUNTS]
    told = _told.get(device)
    if at is not None and told is not None and not _differs(values, told):
        return
    _told[device] = values
    largest = UNKNOWN
    if at is None or (_has_run_short(values, told) and at >= _next_look):
        largest = _largest_free(cuda, device, statistics)
        _next_look = at + _LOOK_EVERY if at is not None else _next_look
    said = MemorySample(ctypes.sizeof(MemorySample), device, UNKNOWN, _total(cuda, device), *values, largest)
    _box.lib.memory(ctypes.byref(said))


def _has_run_short(values, told):
    """Whether it found nothing, or nothing at first, since that was told."""
    counts = slice(len(_SIZES), None)
    return told is not None and any(UNKNOWN > a > b for a, b in zip(values[counts], told[counts]))


def _largest_free(cuda, device, statistics):
    """Bytes of the largest piece that the allocator holds and has given to nobody. Touches nothing on the device."""
    try:
        if sum(_at(statistics, path) for path in _PIECES) > _MOST_PIECES:
            return UNKNOWN
        # What it was told to remember of each piece would come with it, at a price that nobody knows.
        if sys.modules["torch"]._C._cuda_isHistoryEnabled():
            return UNKNOWN
        try:
            segments = cuda.memory_snapshot(include_traces=False)
        except TypeError:  # an older PyTorch (2.10), which gives none
            segments = cuda.memory_snapshot()
        # A pool of its own is that of a captured graph, from which nobody else is given anything.
        pieces = (
            block["size"]
            for segment in segments
            if segment["device"] == device and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
            for block in segment["blocks"]
            if block["state"] == "inactive"
        )
        return max(pieces, default=0)
    except Exception:  # an allocator that has no such pieces
        return UNKNOWN


def _say_versions():
    versions = {"python": "%d.%d.%d" % sys.version_info[:3]}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = torch.__version__
        cuda = getattr(getattr(torch, "version", None), "cuda", None)
        if cuda:
            versions["torch.cuda"] = cuda
    for name, version in versions.items():
        _box.lib.setting(text(name), text(version))


def _reset():
    global _next, _next_look, _failures
    _next = _next_look = 0.0
    _failures = 0
    _told.clear()
    _totals.clear()


_box.on_open.append(_say_versions)
_box.on_reset.append(_reset)
