"""Keeps frames of this package out of the tracebacks that users see."""


def conceal(error):
    """Removes the frame of the caller, which re-raises `error` with a bare `raise`, from its traceback."""
    error.__traceback__ = error.__traceback__.tb_next
