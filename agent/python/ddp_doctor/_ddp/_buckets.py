"""Measures how long DDP waits for its gradient buckets.

DDP waits in C++, in a callback that it queues after its last bucket and that the autograd engine calls when the
graph is done. A callback queued at the first bucket runs directly before it, so the time from there to the return
of the backward is DDP's wait. On devices, an engine thread without a backward of its own sends the buckets, and
nothing is queued or measured.
"""

import functools
from _thread import get_ident
from time import perf_counter_ns

from .. import _box, _words
from .._tracebacks import conceal
from . import _parameters

# State of a thread's backward; any other value is the time at which the wait began, in nanoseconds.
_NOTHING_SENT, _UNDER_WAY = 0, 1

# Thread → state of its innermost backward.
_backwards = {}
_queue_callback = None
# The program has registered a communication hook; DDP's wait then includes the hook's computation.
_hooked = False


def begins():
    """Called when a backward begins on this thread. Returns the state of the outer backward, for `ended`."""
    if not _box.is_open:
        return None
    thread = get_ident()
    outer = _backwards.get(thread)
    _backwards[thread] = _NOTHING_SENT
    return outer


def sent():
    """Called when DDP sends a bucket from this thread."""
    thread = get_ident()
    if _backwards.get(thread) == _NOTHING_SENT and not _hooked and _queue_callback is not None:
        _backwards[thread] = _UNDER_WAY
        _queue_callback(_waits)


def _waits():
    """Called when the graph is done, directly before DDP's own callback."""
    try:
        thread = get_ident()
        if _backwards.get(thread) == _UNDER_WAY:
            _backwards[thread] = perf_counter_ns()
    except Exception:  # would be raised in the user's backward
        pass


def ended(outer, well):
    """Called when the backward has returned (`well`) or raised. `outer` is the result of `begins`."""
    thread = get_ident()
    since = _backwards.pop(thread, _NOTHING_SENT)
    if outer is not None:
        _backwards[thread] = outer
    if well and since > _UNDER_WAY and _box.is_open:
        _box.lib.spent(_words.BUCKETS, perf_counter_ns() - since, 0)


def needed():
    """What the extension needs of this module, by name."""
    return {"buckets": globals(), "queue_callback": _queue_callback}


def use(extension):
    """Replaces functions of this module by those of the extension."""
    global sent, _waits
    sent, _waits = extension.bucket_sent, extension.graph_done


def wrap_register_hook(original):
    """`DistributedDataParallel.register_comm_hook`."""

    @functools.wraps(original)
    def register_comm_hook(self, *args, **kwargs):
        global _hooked
        _hooked = True
        _parameters.averages_otherwise(self)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            conceal(error)
            raise

    return register_comm_hook


def patch(engine):
    global _queue_callback
    _queue_callback = getattr(engine, "queue_callback", None)


_box.on_reset.append(_backwards.clear)
