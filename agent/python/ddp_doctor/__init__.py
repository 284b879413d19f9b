"""Reports the collectives of this process to ddp-doctor.

Everything here is a no-op in a process whose collectives are not captured. Importing the package
imports neither PyTorch nor anything else that costs time.
"""

import os as _os  # the interpreter has it already; anything more would cost every process its start

__version__ = "0.1.0"
__all__ = ["enable", "phase", "step"]


def enable():
    """Switches the capture on in a program that `ddp-doctor run` did not start.

    Best called before PyTorch is imported. Later calls work too and take over the process groups
    that exist; names that a module took with `from torch.distributed import …` are replaced there.
    """
    if _os.environ.get("DDP_DOCTOR") == "0":
        return
    try:
        from . import _finder

        _finder.install()
    except Exception:  # the program comes first
        pass


def step():
    """A training step begins. From the first call on, DDP's forwards no longer count as steps."""
    try:
        from . import _ddp

        _ddp.explicit_step()
    except Exception:
        pass


class phase:
    """Marks a phase of the program ("checkpoint", "evaluation"), as a context or as a decorator."""

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
