"""Backward passes: missing gradients, the time DDP waits in them, and exceptions raised out of them."""

import functools
import sys

from .. import _words
from .._process import _exceptions
from .._tracebacks import conceal
from . import _buckets, _parameters


_FUNCTION = "_engine_run_backward"
# torch.autograd, and its function as it was replaced here.
_autograd = _wrapped = None


class _Engine:
    """The engine of PyTorch before 2.3, which has no function for all backward passes."""

    def __init__(self, engine):
        self._engine = engine
        self.run_backward = _wrap(engine.run_backward)

    def __getattr__(self, name):
        return getattr(self._engine, name)


def patch(autograd, late):
    global _autograd, _wrapped
    engine = getattr(getattr(autograd, "Variable", None), "_execution_engine", None)
    _buckets.patch(engine)
    original = getattr(autograd, _FUNCTION, None)
    if original is not None:
        _autograd, _wrapped = autograd, _wrap(original)
        setattr(autograd, _FUNCTION, _wrapped)
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
            _raised(error, sys._getframe(1))
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


def _raised(error, frame):
    """Called for an exception of a backward that the frame calls, after `ended`."""
    _exceptions.record(_words.LEFT_BACKWARD, error)
    _guarded(_parameters.backward_raised, error, frame)


def needed():
    """What the extension needs of this module, by name."""
    return {"backward_raised": _raised}


def use(extension):
    """Replaces functions by those of the extension, except for what the program has replaced since."""
    global begins, ended
    begins, ended = extension.backward_begins, extension.backward_ended
    if _wrapped is not None and getattr(_autograd, _FUNCTION, None) is _wrapped:
        setattr(_autograd, _FUNCTION, extension.wrap_backward(_wrapped.__wrapped__))


def _guarded(call, *arguments):
    try:
        call(*arguments)
    except Exception:  # must not affect the program
        pass
