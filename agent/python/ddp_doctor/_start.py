"""Enables the capture at the start of an interpreter that `ddp-doctor run` did not start.

`ddp_doctor.pth` of the installed package imports this module if the environment names a coordinator.
"""

try:
    from . import _finder

    _finder.install()
except Exception as _error:
    try:
        import sys

        sys.stderr.write("ddp-doctor: capture could not be enabled: %s\n" % (_error,))
    except Exception:
        pass
