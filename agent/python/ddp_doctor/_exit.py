"""How the process ended, as far as it can be known from inside.

The operating system knows the status; what it does not know is whether the program returned, left
by `sys.exit` or was ended by an exception. A `raise SystemExit` cannot be told from a return:
where the main file names one, the record says that it does not know.

It is said as soon as the interpreter begins to end, before `atexit` runs anything of the program's:
what is called from there on is called on the way out.
"""

import atexit
import os
import re
import sys
import threading

from . import _box, _exceptions, _words
from ._native import text

_hooked = False
# The interpreter forgets it before it calls us.
_main_file = None
_left_by_exit = None
_uncaught = None
_said = False


def uncaught(kind):
    global _uncaught
    if threading.current_thread() is threading.main_thread():
        _uncaught = kind


def _status(value):
    """The status that an argument of `sys.exit` becomes."""
    if value is None:
        return 0
    return value & 0xFF if isinstance(value, int) else 1


def _record(code, how):
    if _box.is_open:
        _box.lib.exit(code, text(how))


def _names_system_exit():
    if not _main_file:
        return True
    with open(_main_file, "rb") as source:
        body = source.read(1 << 20)
    return re.search(rb"SystemExit|(?<![\w.])(?:exit|quit)\s*\(", body) is not None


def _nobody_waits_any_more():
    try:
        from . import _hooks

        _hooks.all_gone()
    except Exception:
        pass


def ends():
    """The interpreter begins to end."""
    global _said
    try:
        if _said or not _box.is_open:
            return
        _said = True
        _nobody_waits_any_more()
        kind = _uncaught
        if kind is None:
            # Somebody replaced sys.excepthook and did not call ours.
            value = getattr(sys, "last_value", None)
            if value is not None and not hasattr(sys, "ps1"):
                kind = type(value)
                _exceptions.record(_words.UNCAUGHT, value)
        if kind is not None:
            _record(130 if issubclass(kind, KeyboardInterrupt) else 1, "uncaught exception")
        elif _left_by_exit is not None:
            _record(_status(_left_by_exit[0]), "sys.exit")
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
    # Its callbacks are the first that run. It is private, but older than PyTorch's hooks.
    try:
        threading._register_atexit(ends)
    except Exception:  # there is none, or the interpreter ends already
        pass
    atexit.register(ends)
    leave = sys.exit
    leave_now = os._exit

    def exit(status=None, /):
        global _left_by_exit
        try:
            if threading.current_thread() is threading.main_thread():
                _left_by_exit = (status if isinstance(status, (int, type(None))) else 1,)
            exception = sys.exc_info()[1]
            if exception is not None and _status(status) and not isinstance(exception, SystemExit):
                # torch.multiprocessing.spawn ends its processes like this.
                file = sys._getframe(1).f_code.co_filename.replace(os.sep, "/")
                ends = file.endswith("torch/multiprocessing/spawn.py")
                _exceptions.record(_words.UNCAUGHT if ends else _words.IN_FLIGHT, exception)
            exception = None
        except Exception:
            pass
        leave(status)

    def _exit(status):
        try:
            _record(_status(status), "os._exit")
        except Exception:
            pass
        leave_now(status)

    exit.__doc__ = leave.__doc__
    _exit.__doc__ = leave_now.__doc__
    sys.exit = exit
    os._exit = _exit


def _reset():
    global _left_by_exit, _uncaught, _said
    _left_by_exit = None
    _uncaught = None
    _said = False


_box.on_open.append(_hook_interpreter)
_box.on_reset.append(_reset)
