"""Switches the capture on at the start of the interpreter, then makes way for the next `sitecustomize`.

This file runs in every Python process below `ddp-doctor run`: launchers, helpers, workers. It
imports nothing heavy and leaves no trace but a finder that waits for PyTorch.
"""

import os
import sys


def _activate(here):
    if os.environ.get("DDP_DOCTOR") == "0" or not os.environ.get("DDP_DOCTOR_JOB"):
        return
    root = os.path.dirname(os.path.dirname(here))
    sys.path.insert(0, root)
    try:
        from ddp_doctor import _finder
    finally:
        sys.path.remove(root)
    _finder.install()


_here = os.path.dirname(os.path.abspath(__file__))
try:
    _activate(_here)
except Exception as _error:
    try:
        sys.stderr.write("ddp-doctor: the capture could not be switched on: %s\n" % (_error,))
    except Exception:
        pass

# From here on it must look as if this file did not exist: the import system hands whatever stands
# in sys.modules to whoever imported `sitecustomize`, and an error of the next one, or its absence,
# is treated as it would have been without us.
sys.path[:] = [_entry for _entry in sys.path if not (isinstance(_entry, str) and os.path.abspath(_entry or ".") == _here)]
sys.modules.pop("sitecustomize", None)
import sitecustomize  # noqa: E402,F401
