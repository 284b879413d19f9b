"""Lets ddp-doctor read PyTorch's own recorder of collectives (its Flight Recorder) from outside.

This is for a PyTorch that has no hooks (before 2.14), where somebody asks for it. A server of PyTorch's answers on a socket that
belongs to this user alone; it runs without the interpreter's lock, so that it answers whatever the
program does. When the program ends nobody can ask any more, so the last answer is left in a file.

The server is never shut down: that would wait for its threads, which a forked child does not have.
"""

import ctypes
import os
import stat
import tempfile

from . import _box, _words
from ._native import text

# What the calls of a process are reported as.
HOOKS = "c10d"
RECORDER = "flight-recorder"

_SIZE = "TORCH_FR_BUFFER_SIZE"
# As both are called, newest first: what is set first counts.
_SIZES = (_SIZE, "TORCH_NCCL_TRACE_BUFFER_SIZE")
# Calls that are kept where the recorder is off unless somebody wants it: it costs a reader half a
# millisecond for each few dozen of them.
_FEW = 512
# What PyTorch itself keeps where it records unasked.
_MANY = 2000
# Longest path that a socket may have, with its final zero.
_LONGEST = 108
_SETTING = "flight recorder"
_LAST_WORDS = ".json"

_bindings = None
# Path of the socket.
_path = None
# A folder that was made for it alone.
_folder = None
_started = False
_said = False


def is_wanted():
    """Whether the calls of this process are taken from the recorder: where somebody asks for it.

    A job whose ranks had such a server was seen to abort at its end, and that the server had no part in it
    is not known.
    """
    return os.environ.get("DDP_DOCTOR_CAPTURE") == "recorder"


def _is_recording(backend):
    """Switches the recorder on where nobody has decided about it; whether it is on."""
    for name in _SIZES:
        if name in os.environ:
            try:
                return int(os.environ[name]) > 0
            except ValueError:
                return False
    os.environ[_SIZE] = str(_FEW if str(backend).lower() in ("gloo", "cpu:gloo") else _MANY)
    if not hasattr(_bindings, "FlightRecorderHook"):
        os.environ[_SIZES[1]] = os.environ[_SIZE]
    return True


def _is_private(folder):
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _new_path():
    """A path for a socket, in a folder that is this user's alone."""
    global _folder
    name = "%d.fr" % os.getpid()
    place = os.environ.get("DDP_DOCTOR_BOX_DIR")
    try:
        if place and _is_private(place):
            path = os.path.join(os.path.abspath(place), name)
            if len(os.fsencode(path)) < _LONGEST and not os.path.lexists(path):
                return path
    except OSError:
        pass
    _folder = tempfile.mkdtemp(prefix="ddp-doctor-")
    path = os.path.join(_folder, name)
    if len(os.fsencode(path)) >= _LONGEST:
        raise OSError("%s: a socket cannot have so long a path" % path)
    return path


def start(backend):
    """Starts the server; the process has its black box, and has joined no group yet."""
    global _bindings, _path, _started
    if _started or not is_wanted() or not _box.is_open:
        return
    _started = True
    try:
        import torch

        _bindings = torch._C._distributed_c10d
        if not hasattr(_bindings, "_WorkerServer"):
            return _cannot("it has no server to read its recorder by")
        names = getattr(_bindings, "_get_handler_names", None)
        if names is not None and "fr_trace_json" not in names():
            return _cannot("its server does not tell what it recorded (that came with 2.10)")
        if not _is_recording(backend):
            return _cannot("its Flight Recorder is switched off (%s, %s)" % _SIZES)
        path = _new_path()
        server = _bindings._WorkerServer(path, -1)
        # For ever: see above.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        _path = path
        _box.lib.setting(text(_SETTING), text(path))
    except Exception as error:  # the program comes first
        _cannot(error)


def say_there_are_no_hooks():
    global _said
    if _said:
        return
    _said = True
    import torch

    _box.note(
        _words.NO_HOOKS,
        "PyTorch %s has no c10d hooks (they came with 2.14): its collectives are not seen from Python, unless by "
        "its Flight Recorder (2.10 and newer; DDP_DOCTOR_CAPTURE=recorder)" % (getattr(torch, "__version__", "?"),),
    )


def _cannot(why):
    import torch

    _box.note(
        _words.NO_HOOKS,
        "PyTorch %s has no c10d hooks (they came with 2.14), and its Flight Recorder cannot be read: %s; its "
        "collectives are not seen" % (getattr(torch, "__version__", "?"), why),
    )


def last_words():
    """Leaves what the recorder holds in a file, instead of the socket. The process is about to end."""
    global _path, _folder
    path, folder = _path, _folder
    if path is None:
        return
    _path = _folder = None
    try:
        os.unlink(path)
        half = path + ".part"
        with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(_bindings._dump_fr_trace_json())
        os.rename(half, path + _LAST_WORDS)
    except Exception:
        pass


def _reset():
    # A forked child: the server, its socket and what it says are its parent's.
    global _path, _folder, _started, _said
    _path = _folder = None
    _started = _said = False


_box.on_reset.append(_reset)
