"""How the process ended, as far as it is visible from inside.

The exit status does not show whether the program returned, called `sys.exit` or was ended by an
exception. `raise SystemExit` looks like a return, so if the main file mentions it, the record says
only that the interpreter ended.

The record is written as soon as the interpreter begins to exit, before the program's `atexit` handlers
run: calls after it are made during the exit.
"""

import atexit
import os
import re
import sys
import threading

from .. import _box, _sites, _words
from .._native import text
from . import _exceptions

# Called before the end is recorded.
on_exit = []
_hooked = False
# Stored because the interpreter clears it before `ends` is called.
_main_file = None
_left_by_exit = None
_uncaught = None
_recorded = False


def uncaught(kind):
    global _uncaught
    if threading.current_thread() is threading.main_thread():
        _uncaught = kind


def _status(value):
    """The exit status for an argument of `sys.exit`."""
    if value is None:
        return 0
    return value & 0xFF if isinstance(value, int) else 1


def _record(code, how, site=0):
    if _box.is_open:
        _box.lib.exit(code, text(how), site)


def _site_of(frame):
    """Site of the line that ends the process; 0: none, or the capture does not run."""
    return _sites.site_of(frame) if _box.is_open else 0


def _names_system_exit():
    if not _main_file:
        return True
    with open(_main_file, "rb") as source:
        body = source.read(1 << 20)
    return re.search(rb"SystemExit|(?<![\w.])(?:exit|quit)\s*\(", body) is not None


def ends():
    """Called when the interpreter begins to exit. Records how, once."""
    global _recorded
    try:
        if _recorded or not _box.is_open:
            return
        _recorded = True
        for prepare in on_exit:
            try:
                prepare()
            except Exception:
                pass
        kind = _uncaught
        if kind is None:
            # sys.excepthook was replaced by one that does not call ours.
            value = getattr(sys, "last_value", None)
            if value is not None and not hasattr(sys, "ps1"):
                kind = type(value)
                _exceptions.record(_words.UNCAUGHT, value)
        if kind is not None:
            _record(130 if issubclass(kind, KeyboardInterrupt) else 1, "uncaught exception")
        elif _left_by_exit is not None:
            status, site = _left_by_exit
            _record(_status(status), "sys.exit", site)
        elif _names_system_exit():
            _record(-1, "interpreter ended")
        else:
            _record(0, "main returned")
    except Exception:
        pass


def _hook_interpreter():
    global _hooked, _main_file
    if _hooked:
        return
    _hooked = True
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file:
        _main_file = os.path.abspath(file)
    # These callbacks run first. The function is private, but older than PyTorch's hooks.
    try:
        threading._register_atexit(ends)
    except Exception:  # it does not exist, or the interpreter is exiting already
        pass
    atexit.register(ends)
    leave = sys.exit
    leave_now = os._exit

    def exit(status=None, /):
        global _left_by_exit
        try:
            if threading.current_thread() is threading.main_thread():
                status_known = status if isinstance(status, (int, type(None))) else 1
                _left_by_exit = (status_known, _site_of(sys._getframe(1)))
            exception = sys.exc_info()[1]
            if exception is not None and _status(status) and not isinstance(exception, SystemExit):
                # torch.multiprocessing.spawn exits this way after an exception.
                file = sys._getframe(1).f_code.co_filename.replace(os.sep, "/")
                is_spawned = file.endswith("torch/multiprocessing/spawn.py")
                _exceptions.record(_words.UNCAUGHT if is_spawned else _words.IN_FLIGHT, exception)
            exception = None
        except Exception:
            pass
        leave(status)

    def _exit(status):
        try:
            _record(_status(status), "os._exit", _site_of(sys._getframe(1)))
        except Exception:
            pass
        leave_now(status)

    for module, replacement, original in ((sys, exit, leave), (os, _exit, leave_now)):
        replacement.__doc__ = original.__doc__
        # Functions are pickled by these names. The original os._exit names another module, which has no replacement.
        replacement.__module__ = module.__name__
        replacement.__qualname__ = replacement.__name__
        setattr(module, replacement.__name__, replacement)


def _reset():
    global _left_by_exit, _uncaught, _recorded
    _left_by_exit = None
    _uncaught = None
    _recorded = False


_box.on_open.append(_hook_interpreter)
_box.on_reset.append(_reset)
