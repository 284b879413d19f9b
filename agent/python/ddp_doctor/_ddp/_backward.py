"""Backward passes: missing gradients, the time DDP waits in them, and exceptions raised out of them."""

import functools
import sys

from .. import _words
from .._process import _exceptions
from .._tracebacks import conceal
from . import _buckets, _parameters


class _Engine:
    """The engine of PyTorch before 2.3, which has no function for all backward passes."""

    def __init__(self, engine):
        self._engine = engine
        self.run_backward = _wrap(engine.run_backward)

    def __getattr__(self, name):
        return getattr(self._engine, name)


def patch(autograd, late):
    engine = getattr(getattr(autograd, "Variable", None), "_execution_engine", None)
    _buckets.patch(engine)
    original = getattr(autograd, "_engine_run_backward", None)
    if original is not None:
        autograd._engine_run_backward = _wrap(original)
    elif engine is not None:
        autograd.Variable._execution_engine = _Engine(engine)


def _wrap(original):
    @functools.wraps(original)
    def _engine_run_backward(*args, **kwargs):
        outer = begins()
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            ended(outer, False)
            _exceptions.record(_words.LEFT_BACKWARD, error)
            _guarded(_parameters.backward_raised, error, sys._getframe(1))
            conceal(error)
            raise
        ended(outer, True)
        return result

    return _engine_run_backward


def begins():
    """Called before a backward. Returns what `ended` needs."""
    _guarded(_parameters.backward_begins)
    return _buckets.begins()


def ended(outer, well):
    """Called when a backward has returned (`well`) or raised."""
    _guarded(_buckets.ended, outer, well)
    if well:
        _guarded(_parameters.backward_ended, sys._getframe(2))


def use(extension):
    """Replaces functions of this module by those of the extension."""
    global begins, ended
    begins, ended = extension.backward_begins, extension.backward_ended


def _guarded(call, *arguments):
    try:
        call(*arguments)
    except Exception:  # must not affect the program
        pass
