"""For how long DDP waits for its buckets of gradients.

DDP waits in C++, in a callback that the autograd engine calls when the graph is done, and which DDP queues behind
its last bucket. A callback that is queued at the first bucket is called right before that one: what lies between
it and the return of the backward is DDP's wait, and nothing else. Where a device computes gradients, the buckets
are sent by a thread of the engine's own, in which no backward was called, and nothing is queued.
"""

import functools
from _thread import get_ident
from time import perf_counter_ns

from . import _box, _words

# What a thread's backward has come to, beside the moment at which it began to wait.
_NOTHING_SENT, _UNDER_WAY = 0, 1

# Thread → what its innermost backward has come to.
_backwards = {}
_queue_callback = None
# A hook of the program's averages gradients somewhere: DDP then waits for what that computes, too.
_hooked = False


def begins():
    """A backward begins on this thread. Returns what `ended` wants to know: the backward around it."""
    if not _box.is_open:
        return None
    thread = get_ident()
    outer = _backwards.get(thread)
    _backwards[thread] = _NOTHING_SENT
    return outer


def sent(thread):
    """DDP sends a bucket from this thread."""
    if _backwards.get(thread) == _NOTHING_SENT and not _hooked and _queue_callback is not None:
        _backwards[thread] = _UNDER_WAY
        _queue_callback(_waits)


def _waits():
    """The graph is done; DDP's own callback is next."""
    try:
        thread = get_ident()
        if _backwards.get(thread) == _UNDER_WAY:
            _backwards[thread] = perf_counter_ns()
    except Exception:  # it would surface in the user's backward
        pass


def ended(outer, well):
    """The backward is over."""
    thread = get_ident()
    since = _backwards.pop(thread, _NOTHING_SENT)
    if outer is not None:
        _backwards[thread] = outer
    if well and since > _UNDER_WAY and _box.is_open:
        _box.lib.spent(_words.BUCKETS, perf_counter_ns() - since, 0)


def wrap_register_hook(original):
    """`DistributedDataParallel.register_comm_hook`."""

    @functools.wraps(original)
    def register_comm_hook(self, *args, **kwargs):
        global _hooked
        _hooked = True
        return original(self, *args, **kwargs)

    return register_comm_hook


def patch(engine):
    global _queue_callback
    _queue_callback = getattr(engine, "queue_callback", None)


_box.on_reset.append(_backwards.clear)
