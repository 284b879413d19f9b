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
_SHARE = 50
_next = 0.0
_told = {}


def sample(now=time.monotonic):
    """Says what the allocator holds now, if it is time and that is news. Called at steps."""
    global _next
    at = now()
    if at < _next:
        return
    _next = at + _EVERY
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not _box.is_open or not cuda.is_initialized():
        return
    device = cuda.current_device()
    allocated, reserved = cuda.memory_allocated(device), cuda.memory_reserved(device)
    told = _told.get(device)
    if told is not None and not any(abs(a - b) >= max(_STEP, b // _SHARE) for a, b in zip((allocated, reserved), told)):
        return
    _told[device] = (allocated, reserved)
    said = MemorySample(ctypes.sizeof(MemorySample), device, UNKNOWN, UNKNOWN, allocated, reserved)
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


_box.on_open.append(_say_versions)
_box.on_reset.append(_reset)
