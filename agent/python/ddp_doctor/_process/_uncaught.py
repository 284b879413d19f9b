"""Uncaught exceptions of the interpreter and of its threads."""

import sys
import threading

from .. import _box, _words
from . import _exceptions, _exit

_hooked = False


def is_caught(traceback, frame):
    """Whether the exception was caught, and is only reported by code that continues.

    It was caught if the outermost function of its traceback is still running.
    """
    catcher = traceback.tb_frame if traceback is not None else None
    while frame is not None and frame is not catcher:
        frame = frame.f_back
    return frame is not None


def _hook_interpreter():
    """Records uncaught exceptions before the previous hooks run. Installed once, when a box is opened."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    previous = sys.excepthook
    previous_in_thread = threading.excepthook

    def excepthook(kind, value, traceback):
        try:
            caught = is_caught(traceback, sys._getframe(1))
        except Exception:  # called by the interpreter itself, so there is no outer frame
            caught = False
        if not caught:
            _exceptions.record(_words.UNCAUGHT, value, traceback)
            _exit.uncaught(kind)
        previous(kind, value, traceback)

    def thread_excepthook(args, /):
        if args.exc_type is not SystemExit:
            _exceptions.record(_words.UNCAUGHT_IN_THREAD, args.exc_value, args.exc_traceback)
        previous_in_thread(args)

    sys.excepthook = excepthook
    threading.excepthook = thread_excepthook


_box.on_open.append(_hook_interpreter)
