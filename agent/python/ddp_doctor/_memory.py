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
            _sample(cuda)
    except Exception:
        pass


def _sample(cuda):
    """One call of PyTorch's, which takes the allocator's lock for as long as it copies its counters."""
    device = cuda.current_device()
    statistics = cuda.memory_stats_as_nested_dict(device)
    values = [_at(statistics, path) for path in _SIZES + _COUNTS]
    told = _told.get(device)
    if told is not None and not _differs(values, told):
        return
    _told[device] = values
    said = MemorySample(ctypes.sizeof(MemorySample), device, UNKNOWN, _total(cuda, device), *values)
    _box.lib.memory(ctypes.byref(said))


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
    global _next
    _next = 0.0
    _told.clear()
    _totals.clear()


_box.on_open.append(_say_versions)
_box.on_reset.append(_reset)
