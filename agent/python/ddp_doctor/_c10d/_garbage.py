"""Records long garbage collections, which stop all threads of the program."""

import gc
from time import perf_counter_ns

from .. import _box, _words

# Minimum duration of a collection that is recorded, in nanoseconds.
_NOTICEABLE = 1_000_000

_begun = 0


def _collects(phase, info):
    global _begun
    try:
        if phase == "start":
            _begun = perf_counter_ns()
            return
        took = perf_counter_ns() - _begun
        if took >= _NOTICEABLE and _begun and _box.is_open:
            _box.lib.spent(_words.GARBAGE, took, 0)
    except Exception:  # must not affect the program
        pass


def _watch():
    if _collects not in gc.callbacks:
        gc.callbacks.append(_collects)


_box.on_open.append(_watch)
