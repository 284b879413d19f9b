"""The program's input: number of batches drawn, the time they take, and the end of the input."""

import sys
from time import perf_counter_ns

from .. import _box, _sites, _words
from .._tracebacks import conceal

_MOST_PLACES = 1024
# Minimum duration of drawing a batch that is recorded, in nanoseconds.
_NOTICEABLE = 1_000_000

# Site at which batches are drawn → number of batches.
_drawn = {}
_last = None


def drawn():
    """Number of batches drawn so far at the site of the last one; -1: none."""
    return _drawn.get(_last, -1)


def _count(frame):
    global _last
    site = _sites.site_of(frame)
    if site in _drawn or len(_drawn) < _MOST_PLACES:
        _drawn[site] = _drawn.get(site, 0) + 1
        _last = site
    return site


def patch(module, late):
    iterator = module._BaseDataLoaderIter
    original = iterator.__next__

    def __next__(self):
        begin = perf_counter_ns()
        try:
            batch = original(self)
        except BaseException as error:
            if _box.is_open and isinstance(error, StopIteration):
                try:
                    _box.lib.input_ended(_sites.site_of(sys._getframe(1)))
                except Exception:
                    pass
            conceal(error)
            raise
        if _box.is_open:
            try:
                site = _count(sys._getframe(1))
                took = perf_counter_ns() - begin
                if took >= _NOTICEABLE:
                    _box.lib.spent(_words.INPUT, took, site)
            except Exception:
                pass
        return batch

    __next__.__doc__ = original.__doc__
    iterator.__next__ = __next__


def _reset():
    global _last
    _drawn.clear()
    _last = None


_box.on_reset.append(_reset)
