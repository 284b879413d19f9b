"""The program's input: number of batches drawn, the time they take, and the end of the input."""

import sys
from time import perf_counter_ns

from .. import _box, _sites, _words
from .._tracebacks import conceal

_MOST_PLACES = 1024
# Minimum duration of drawing a batch that is recorded, in nanoseconds.
_NOTICEABLE = 1_000_000
# The modules of the samplers that are asked for their number of batches. Others may compute all batches to answer.
_SAMPLERS = ("torch.utils.data.sampler", "torch.utils.data.distributed")

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


def _number(sampler):
    """Number of batches of a sampler; -1: unknown."""
    for it in (sampler, getattr(sampler, "sampler", sampler)):
        if type(it).__module__ not in _SAMPLERS:
            return -1
    return len(sampler)


def _is_last(iterator):
    """Whether the batch that was just drawn is the last one. A loop that knows the number of batches, such as that of a
    trainer, does not ask for another one."""
    number = iterator._num_yielded
    if number == 1:
        iterator._ddp_doctor_batches = -1
        iterator._ddp_doctor_batches = _number(iterator._index_sampler)
    return number == iterator._ddp_doctor_batches


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
                if _is_last(self):
                    _box.lib.last_input(_drawn.get(site, 0), site)
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
