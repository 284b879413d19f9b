"""The black box of this process, and its state after a fork.

A box is created when the process joins a process group. The library records nothing in a forked child
by itself; numbers from the parent's box are invalid in a box of the child.
"""

import ctypes
import os
import sys
import threading

from . import _words
from ._native import Identity, load, text

is_open = False
# The reporting layer.
layer = "c10d"
# Counts black boxes and forks. Numbers are valid only in the generation in which they were assigned.
generation = 0
lib = None
_load_failed = False
_phases = {}
_lock = threading.Lock()
# Callbacks for the moment when numbers become invalid, and when a box was opened.
on_reset = []
on_open = []


def _environment(name):
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return -1


def local_rank():
    return _environment("LOCAL_RANK")


def identity_from_environment():
    return _environment("RANK"), _environment("WORLD_SIZE")


def _library():
    global lib, _load_failed
    if lib is None and not _load_failed:
        try:
            lib = load()
        except Exception as error:
            _load_failed = True
            try:
                sys.stderr.write("ddp-doctor: nothing is captured in process %d: %s\n" % (os.getpid(), error))
            except Exception:
                pass
    return lib


def join(rank, world_size):
    """Creates the black box, or updates the identity in the existing one. Returns whether there is one."""
    global is_open, generation
    with _lock:
        if _library() is None:
            return False
        identity = Identity(rank, world_size, local_rank())
        status = lib.open(text(layer), ctypes.byref(identity))
        if status not in (_words.OK, _words.ALREADY_OPEN):
            return False
        if not is_open:
            generation += 1
            is_open = True
            for call in on_open:
                try:
                    call()
                except Exception:
                    pass
    return True


def set_identity(rank, world_size):
    if is_open:
        identity = Identity(rank, world_size, local_rank())
        lib.set_identity(ctypes.byref(identity))


def note(kind, message):
    if is_open:
        lib.note(kind, text(message))


def phase_begin(name):
    """Records the start of a phase. Returns its number for `phase_end`; 0: nothing is captured."""
    if not is_open:
        return 0
    number = _phases.get(name)
    if number is None:
        number = lib.string(text(name))
        if len(_phases) < 1024:
            _phases[name] = number
    if number:
        lib.phase_begin(number)
    return number


def phase_end(number):
    if is_open:
        lib.phase_end(number)


def _in_child():
    global is_open, generation, _lock
    _lock = threading.Lock()
    is_open = False
    generation += 1
    _phases.clear()
    for call in on_reset:
        try:
            call()
        except Exception:
            pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
