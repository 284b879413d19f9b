"""Exceptions that leave a backward pass."""

import functools

from . import _exceptions, _words


def patch(autograd, late):
    original = getattr(autograd, "_engine_run_backward", None)
    if original is None:
        return

    @functools.wraps(original)
    def _engine_run_backward(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            _exceptions.record(_words.LEFT_BACKWARD, error)
            raise

    autograd._engine_run_backward = _engine_run_backward
