"""Switches the capture on at the start of an interpreter that `ddp-doctor run` did not set up.

Where the package is installed, and the environment names a coordinator, `ddp_doctor.pth` imports this.
"""

try:
    from . import _finder

    _finder.install()
except Exception as _error:
    try:
        import sys

        sys.stderr.write("ddp-doctor: the capture could not be switched on: %s\n" % (_error,))
    except Exception:
        pass
