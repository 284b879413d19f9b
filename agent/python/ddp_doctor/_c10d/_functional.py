"""Records the waits for functional collectives, whose results are waited for when they are first used.

The wait happens in C++, without a Work in Python. A result is identified by the address of its memory, which
its views share; no tensor is kept. Calls in compiled graphs are waited for by the graph, and not recorded here.
"""

import functools
import sys

from .. import _box, _sites, _words
from .._process import _exceptions
from .._tracebacks import conceal
from . import _calls

_MOST_RESULTS = 4096
# Functions that wrap a view of a result, or a result of a compiled graph, instead of that of a call.
_REWRAPPING = ("wrap", "__torch_dispatch__", "__tensor_unflatten__")

_getframe = sys._getframe
# Address of a result's memory → call.
_results = {}


def _address(tensor):
    return tensor.untyped_storage().data_ptr()


def _note_result(elem, frame):
    if not _calls.live or frame.f_code.co_name in _REWRAPPING:
        return
    call = _calls.last_call(None)
    address = _address(elem)
    if not call or not address:
        return
    _results.pop(address, None)
    if len(_results) >= _MOST_RESULTS:
        del _results[next(iter(_results))]
    _results[address] = call


def _wrap_new(original):
    def __new__(cls, elem, *args, **kwargs):
        result = original(cls, elem, *args, **kwargs)
        try:
            _note_result(elem, _getframe(1))
        except Exception:
            pass
        return result

    return staticmethod(functools.wraps(original)(__new__))


def _begin_wait(result, frame):
    """Records the start of a wait. Returns the call; `None`: nothing is recorded."""
    call = _results.pop(_address(result.elem), None) if _calls.live else None
    if call is not None:
        _calls.wait_begin(call, _sites.locate(frame)[0])
    return call


def _wrap_wait(original):
    @functools.wraps(original)
    def wait(self):
        call = None
        try:
            call = _begin_wait(self, _getframe(1))
        except Exception:
            pass
        try:
            return original(self)
        except BaseException as error:
            if call is not None:
                _exceptions.record(_words.LEFT_COLLECTIVE, error)
            conceal(error)
            raise
        finally:
            if call is not None:
                _calls.wait_end(call)

    return wait


def patch(module, late):
    result = module.AsyncCollectiveTensor
    result.__new__ = _wrap_new(result.__new__)
    for name in ("trigger_wait", "wait"):
        setattr(result, name, _wrap_wait(getattr(result, name)))


_box.on_reset.append(_results.clear)
