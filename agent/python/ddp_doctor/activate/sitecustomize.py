"""Enables the capture at the start of the interpreter, then imports the next `sitecustomize`.

This file runs in every Python process below `ddp-doctor run`: launchers, helpers, workers. It imports
no expensive modules and leaves only a finder that waits for PyTorch.
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
        sys.stderr.write("ddp-doctor: capture could not be enabled: %s\n" % (_error,))
    except Exception:
        pass

# From here on this file must be invisible: the importer of `sitecustomize` gets the module that is then
# in sys.modules, and an error of the next `sitecustomize`, or its absence, has the usual effect.
sys.path[:] = [_entry for _entry in sys.path if not (isinstance(_entry, str) and os.path.abspath(_entry or ".") == _here)]
sys.modules.pop("sitecustomize", None)
import sitecustomize  # noqa: E402,F401
