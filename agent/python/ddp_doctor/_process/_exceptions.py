"""Records exceptions: uncaught ones, those raised out of a forward, a backward or a collective, and those that
are being handled while the next collective is issued.

No exception is kept, since its frames would keep tensors alive. Recorded exceptions are identified by
address and type.
"""

import sys

from .. import _box, _sites, _words
from .._native import text
from . import _memory

_NO_ERRORS = (StopIteration, StopAsyncIteration, GeneratorExit)
_MOST_BYTES = 1000
_MOST_SEEN = 64
# Maximum number of ignored calls that are recorded per site.
_MOST_IGNORED = 64

# (kind, address, type) of recorded exceptions, oldest first.
_seen = {}
# Site → number of recorded ignored calls.
_ignored = {}


def _describe(exception):
    kind = type(exception)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__", None):
        name = "%s.%s" % (kind.__module__, name)
    try:
        message = str(exception)
    except Exception:
        message = ""
    return "%s: %s" % (name, message) if message else name


def record(kind, exception, traceback=None):
    """Records an exception once per kind. Never raises."""
    try:
        if exception is None or not _box.is_open or isinstance(exception, _NO_ERRORS):
            return
        key = (kind, id(exception), type(exception))
        if key in _seen:
            return
        while len(_seen) >= _MOST_SEEN:
            del _seen[next(iter(_seen))]
        _seen[key] = None
        if traceback is None:
            traceback = exception.__traceback__
        site = _sites.site_of_traceback(traceback)
        if not site:  # raised by PyTorch itself: the user's frame is not in the traceback yet
            site = _sites.site_of(sys._getframe(1))
        _box.lib.exception(kind, text(_describe(exception), _MOST_BYTES), site)
        _memory.failed(exception)
    except Exception:
        pass


def ignored_call(name, frame):
    """Records that PyTorch ignores a call of this c10d function, since the rank is not in the group. Never raises."""
    try:
        site = _sites.site_of(frame) if _box.is_open else 0
        times = _ignored.get(site, 0)
        if site and times < _MOST_IGNORED:
            _ignored[site] = times + 1
            words = "UserWarning: %s on a group that the rank does not belong to" % name
            _box.lib.exception(_words.IGNORED_CALL, text(words, _MOST_BYTES), site)
    except Exception:
        pass


def in_flight(exception):
    """Records an exception that is being handled while a call is issued."""
    if (_words.IN_FLIGHT, id(exception), type(exception)) not in _seen:
        record(_words.IN_FLIGHT, exception)


_box.on_reset.append(_seen.clear)
_box.on_reset.append(_ignored.clear)
