"""A rank that an exception ends before it joins a process group.

It has no black box yet, and the launcher then ends the other ranks, which would be blamed without a
record of the exception. The box is created once it is certain that the process ends.

`RANK` is inherited by launchers in a pod that sets it, by helpers of a rank and by data-loader workers.
These processes are not the rank, and their exceptions do not end it.
"""

import os
import sys
import threading

# _init records the versions when a black box was opened.
from .. import _box, _words  # noqa: F401
from .._c10d import _init  # noqa: F401
from . import _exceptions, _exit, _uncaught

# Exceptions of a launcher report failed ranks; they are not failures of a rank.
_LAUNCHERS = (
    "torch/distributed/run.py",
    "torch/distributed/launcher/",
    "torch/distributed/elastic/agent/",
    "torch/multiprocessing/spawn.py",
)
_MOST_ANCESTORS = 64
_INHERITED = (b"RANK", b"WORLD_SIZE", b"LOCAL_RANK")


def _environment_of(pid):
    """The environment with which a process was started."""
    with open("/proc/%d/environ" % pid, "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
        return {name: value for name, _, value in pairs}


def _parent_of(pid):
    with open("/proc/%d/stat" % pid, "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def _is_python(pid):
    return b"python" in os.path.basename(os.readlink(b"/proc/%d/exe" % pid))


def _has_box(pid):
    with open("/proc/%d/maps" % pid, "rb") as file:
        return any(line.rstrip().endswith(b".box") for line in file)


def _is_helper():
    """Whether the rank that the environment names is another Python process, an ancestor of this one."""
    try:
        pid = os.getpid()
        own = _environment_of(pid)
        for _ in range(_MOST_ANCESTORS):
            pid = _parent_of(pid)
            if pid <= 1:
                return False
            if os.stat("/proc/%d" % pid).st_uid != os.geteuid():
                return False  # reading that of another user may never end
            theirs = _environment_of(pid)
            if theirs.get(b"DDP_DOCTOR_JOB") != own.get(b"DDP_DOCTOR_JOB"):
                return False  # the launcher of the job
            if not _is_python(pid):
                continue  # a shell, or a program that sets the CPU affinity
            return _has_box(pid) or all(theirs.get(name) == own.get(name) for name in _INHERITED)
    except (OSError, ValueError):
        pass
    return False


def _is_of_launcher(traceback):
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename.replace(os.sep, "/")
        if any(name in file for name in _LAUNCHERS):
            return True
        traceback = traceback.tb_next
    return False


def _hook_caller():
    """The frame that called the hook of `_finder`, which called `ended`; `None`: the interpreter itself."""
    try:
        return sys._getframe(5)
    except ValueError:
        return None


def _ends_rank(traceback):
    """Whether this exception ends this process, and this process is the rank in its environment."""
    if hasattr(sys, "ps1") or sys.flags.interactive or sys.flags.inspect:
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return False
    if _uncaught.is_caught(traceback, _hook_caller()):
        return False
    return not _is_of_launcher(traceback) and not _is_helper()


def ended(value, at_exit):
    """Called for an exception that was passed to `sys.excepthook`. Records it if it ends the rank."""
    rank, world_size = _box.identity_from_environment()
    traceback = value.__traceback__
    if _box.is_open or not 0 <= rank < world_size or not _ends_rank(traceback):
        return
    if _box.join(rank, world_size):
        _exceptions.record(_words.UNCAUGHT, value, traceback)
        _exit.uncaught(type(value))
        if at_exit:  # handlers registered now are not called any more
            _exit.ends()
