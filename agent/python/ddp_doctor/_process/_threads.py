"""Records the lines at which threads are started.

A thread that runs only code of PyTorch or of installed packages, such as the writer of an asynchronous checkpoint,
carries the line of the program that started it.
"""

import functools
import sys
import threading

from .. import _box, _sites
from .._tracebacks import conceal


def _patch():
    """Called when a black box was opened."""
    original = threading.Thread.start
    if hasattr(original, _sites.STARTER):
        return

    @functools.wraps(original)
    def start(self):
        try:
            setattr(self, _sites.STARTER, _sites.starter_at(sys._getframe(1)))
        except Exception:
            pass
        try:
            return original(self)
        except BaseException as error:
            conceal(error)
            raise

    setattr(start, _sites.STARTER, True)
    threading.Thread.start = start


_box.on_open.append(_patch)
