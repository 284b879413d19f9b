"""Records exceptions: uncaught ones, those raised out of a forward, a backward or a collective, and those that
are being handled while the next collective is issued.

No exception is kept, since its frames would keep tensors alive. A recorded one has a mark: its address alone may
be that of an earlier exception.
"""

import sys

from .. import _box, _sites, _words
from .._native import text
from . import _memory

_NO_ERRORS = (StopIteration, StopAsyncIteration, GeneratorExit)
_MOST_BYTES = 1000
_TRACEBACK = "Traceback (most recent call last)"
# Maximum number of exceptions of one kind that are recorded per site.
_MOST_AT_SITE = 64
# The same for those that are being handled: a handler from which the rank went on once is not the end of its work.
_MOST_HANDLED_AT_SITE = 1
# Attribute of a recorded exception: its _Mark.
_MARK = "_ddp_doctor_recorded"

# (kind, site) → number of recorded exceptions.
_recorded = {}


def _describe(exception):
    kind = type(exception)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__", None):
        name = "%s.%s" % (kind.__module__, name)
    try:
        message = str(exception)
    except Exception:
        message = ""
    return "%s: %s" % (name, _shortened(message)) if message else name


def _shortened(message):
    """The message; of one that contains a traceback, as those of other processes do, the first line and the exception."""
    if _TRACEBACK not in message:
        return message
    lines = message.strip().splitlines()
    return "%s: %s" % (lines[0].rstrip(".: "), lines[-1].strip())


class _Mark:
    """The kinds for which an exception is recorded in the black box of a generation."""

    __slots__ = ("generation", "kinds")

    def __init__(self, generation):
        self.generation = generation
        self.kinds = set()

    def __reduce__(self):
        return int, ()  # an exception that comes out of a pickle is a new one


def _mark_of(exception):
    mark = exception.__dict__.get(_MARK)
    if not isinstance(mark, _Mark) or mark.generation != _box.generation:
        mark = _Mark(_box.generation)
        # The program's class may refuse attributes.
        BaseException.__setattr__(exception, _MARK, mark)
    return mark


def _has_room(kind, site):
    """Whether another exception of this kind is to be recorded at the site; counts it."""
    times = _recorded.get((kind, site), 0)
    _recorded[kind, site] = times + 1
    return times < (_MOST_HANDLED_AT_SITE if kind == _words.IN_FLIGHT else _MOST_AT_SITE)


def record(kind, exception, traceback=None):
    """Records an exception once per kind. Never raises."""
    try:
        if exception is None or not _box.is_open or isinstance(exception, _NO_ERRORS):
            return
        kinds = _mark_of(exception).kinds
        if kind in kinds:
            return
        kinds.add(kind)
        if traceback is None:
            traceback = exception.__traceback__
        site = _sites.site_of_traceback(traceback)
        if not site:  # raised by PyTorch itself: the user's frame is not in the traceback yet
            site = _sites.site_of(sys._getframe(1))
        if not _has_room(kind, site):
            return
        _box.lib.exception(kind, text(_describe(exception), _MOST_BYTES), site)
        _memory.failed(exception)
    except Exception:
        pass


def ignored_call(name, frame):
    """Records that PyTorch ignores a call of this c10d function, since the rank is not in the group. Never raises."""
    try:
        site = _sites.site_of(frame) if _box.is_open else 0
        if site and _has_room(_words.IGNORED_CALL, site):
            words = "UserWarning: %s on a group that the rank does not belong to" % name
            _box.lib.exception(_words.IGNORED_CALL, text(words, _MOST_BYTES), site)
    except Exception:
        pass


def in_flight(exception):
    """Records an exception that is being handled while a call is issued."""
    record(_words.IN_FLIGHT, exception)


_box.on_reset.append(_recorded.clear)
