"""Frameworks that are installed in an environment of their own: `scripts/pytorch-env --frameworks`."""

import importlib


def required(name):
    """The module; without it, the program cannot run here."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"SKIPPED: {name} is not installed", flush=True)
        raise SystemExit from None
