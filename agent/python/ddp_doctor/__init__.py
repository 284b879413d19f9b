"""Records the collectives of this process for ddp-doctor.

All functions are no-ops in a process whose collectives are not captured. Importing the package
imports neither PyTorch nor any other expensive module.
"""

import os as _os  # already imported by the interpreter; other imports would slow down every start

__version__ = "0.2.0"
__all__ = ["enable", "phase", "step"]


def enable():
    """Enables the capture in a program that `ddp-doctor run` did not start.

    Call it before PyTorch is imported if possible. Later calls also capture existing process groups,
    and replace names that modules have imported with `from torch.distributed import …`.
    """
    if _os.environ.get("DDP_DOCTOR") == "0":
        return
    try:
        from . import _finder

        _finder.install()
    except Exception:  # must not affect the program
        pass


def step():
    """Marks the start of a training step. From the first call on, DDP's forwards do not count as steps."""
    try:
        from ._ddp import _patch

        _patch.explicit_step()
    except Exception:
        pass


class phase:
    """Marks a phase of the program ("checkpoint", "evaluation"), as a context manager or decorator."""

    def __init__(self, name):
        self._name = str(name)
        self._begun = []

    def __enter__(self):
        number = 0
        try:
            from . import _box

            number = _box.phase_begin(self._name)
        except Exception:
            pass
        self._begun.append(number)
        return self

    def __exit__(self, *exception):
        try:
            number = self._begun.pop()
            if number:
                from . import _box

                _box.phase_end(number)
        except Exception:
            pass
        return False

    def __call__(self, function):
        from functools import wraps

        @wraps(function)
        def marked(*args, **kwargs):
            with phase(self._name):
                return function(*args, **kwargs)

        return marked
