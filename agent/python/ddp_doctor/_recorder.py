"""Lets ddp-doctor read PyTorch's own recorder of collectives (its Flight Recorder) from outside.

This is for a PyTorch that has no hooks (before 2.14), and where somebody asks for it. A server of
PyTorch's answers on a socket that belongs to this user alone; it runs without the interpreter's lock, so
that it answers whatever the program does. When the program ends nobody can ask any more, so the last
answer is left in a file.

The server is shut down before the interpreter goes away, and nowhere else: that waits for its threads,
which a forked child does not have, and for ever where they have not begun. So it is never destroyed.
"""

import contextlib
import ctypes
import os
import socket
import stat
import tempfile
import time

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
# What its server is asked, by what the calls are on.
_HANDLERS = {"gloo": "fr_trace_json", "nccl": "dump_nccl_trace_json"}
# What runs on NCCL, as PyTorch calls it.
_ON_NCCL = ("nccl", "nccl2", "nccl-legacy", "nccl-lazy", "nccl4py")
# Where the library that is loaded before NCCL sees its calls, it tells of them.
_SEEN = "nccl calls"
# Has the recorder of calls on NCCL read, too: that asks the CUDA driver, which spoils the capture of a graph.
_READ_NCCL = "DDP_DOCTOR_NCCL_RECORDER"
# What groups are said to be on whose calls go nowhere.
_NOWHERE = ("", "undefined", "fake", "threaded")
# Seconds that the end of a process may take longer for its server's sake.
_PATIENCE = 1.0
# How long those who still ask are waited for at a time.
_MOMENT = 0.005
# What of PyTorch's C++ is printed, by its name there, and where somebody has chosen that: 1 are warnings.
_LEVEL, _LEVEL_IS_CHOSEN = "FLAGS_caffe2_log_level", "TORCH_CPP_LOG_LEVEL"
_WARNINGS, _ERRORS = 1, 2
# Where the kernel lists the sockets of this machine.
_SOCKETS = "/proc/net/unix"

_bindings = None
_server = None
_server_of = None
# Path of the socket.
_path = None
# A folder that was made for it alone.
_folder = None
_started = False
# Backends whose calls are read, and those of which it was said that they are not.
_readable = ()
_said = set()


def is_wanted(c10d):
    """Whether the calls of this process are taken from the recorder: where there are no hooks, if nobody says
    which of the two it is to be."""
    asked = os.environ.get("DDP_DOCTOR_CAPTURE")
    if asked in ("recorder", "hooks"):
        return asked == "recorder"
    return not hasattr(c10d.ProcessGroup, "register_pre_hook")


def _what_is_readable():
    names = getattr(_bindings, "_get_handler_names", None)
    names = tuple(_HANDLERS.values()) if names is None else names()
    asked = [kind for kind in _HANDLERS if kind != "nccl" or os.environ.get(_READ_NCCL) == "1"]
    return tuple(kind for kind in asked if _HANDLERS[kind] in names)


def _nccl_is_seen():
    """Whether the library that is loaded before NCCL sees what is called, so that nobody has to ask a recorder."""
    try:
        return bool(ctypes.CDLL(None).ddp_doctor_nccl_is_ahead())
    except (AttributeError, OSError):
        return False


def _is_recording(backend):
    """Switches the recorder on where nobody has decided about it; whether it is on."""
    for name in _SIZES:
        if name in os.environ:
            try:
                return int(os.environ[name]) > 0
            except ValueError:
                return False
    os.environ[_SIZE] = str(_FEW if str(backend).lower() in ("gloo", "cpu:gloo") else _MANY)
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


@contextlib.contextmanager
def _quietly():
    """Has PyTorch print errors only, which says of its server as a warning that it begins and ends: what is printed is
    to be the program's, that of another thread's C++ in the same millisecond excepted. Not where somebody wants to
    read it."""
    level = None
    try:
        if _LEVEL_IS_CHOSEN not in os.environ:
            import torch

            path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
            loaded = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            level = ctypes.c_int.in_dll(loaded, _LEVEL)
    except Exception:  # another build: then it says so
        pass
    if level is None or level.value != _WARNINGS:
        yield
        return
    level.value = _ERRORS
    try:
        yield
    finally:
        level.value = _WARNINGS


def start(backend):
    """Starts the server; the process has its black box, and has joined no group yet."""
    global _bindings, _path, _readable, _server, _server_of, _started
    if _started or _box.layer != RECORDER or not _box.is_open:
        return
    _started = True
    try:
        import torch

        _bindings = torch._C._distributed_c10d
        if _nccl_is_seen():
            _box.lib.setting(text(_SEEN), text("hooks"))
        if not hasattr(_bindings, "_WorkerServer"):
            return _cannot("it has no server to read its recorder by")
        _readable = _what_is_readable()
        if not _readable:
            return  # what is called is not seen: said once there is a group to call anything on
        if not _is_recording(backend):
            return _cannot("its Flight Recorder is switched off (%s, %s)" % _SIZES)
        path = _new_path()
        with _quietly():
            server = _bindings._WorkerServer(path, -1)
        # For ever: see above.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        _server, _server_of, _path = server, os.getpid(), path
        _box.lib.setting(text(_SETTING), text(path))
    except Exception as error:  # the program comes first
        _cannot(error)


def say_what_is_not_seen(backend):
    """A group came to be, on this backend (`gloo`, or `cpu:gloo,cuda:nccl`): says once what is not seen of its calls."""
    kinds = {part.rpartition(":")[2] for part in str(backend).lower().split(",")}
    for kind in sorted(kinds - _said - set(_readable)):
        if kind in _NOWHERE or kind in _ON_NCCL and _nccl_is_seen():
            continue
        if kind not in _HANDLERS:
            why = "calls on %s are not read from its Flight Recorder" % kind
        elif _box.layer != RECORDER:
            why = "its Flight Recorder is not read where DDP_DOCTOR_CAPTURE=hooks"
        elif kind == "nccl" and os.environ.get(_READ_NCCL) != "1":
            why = "its recorder of calls on NCCL is read only where %s=1 (the capture of CUDA graphs may fail then; `ddp-doctor run --nccl auto` sees NCCL itself)" % _READ_NCCL
        elif kind == "nccl":
            why = "it was built without NCCL's recorder"
        else:
            why = "its server does not tell of calls on Gloo (that came with 2.10)"
        _said.add(kind)
        _note(why)


def _note(why):
    import torch

    version = getattr(torch, "__version__", "?")
    _box.note(_words.NO_HOOKS, "PyTorch %s is seen without c10d hooks (they came with 2.14), and %s" % (version, why))


def _cannot(why):
    _said.update(_HANDLERS)
    _note("its Flight Recorder cannot be read: %s" % why)


def last_words(deadline=None):
    """Leaves what the recorder holds in a file, instead of the socket; whether it could be had. The process is about
    to end."""
    global _path, _folder
    path = _path
    if path is None:
        return False
    _path = _folder = None
    try:
        # Whoever asks for NCCL's may have to wait for a device: that is not to be this thread.
        body = None if "gloo" in _readable else _ask(path, _HANDLERS["nccl"], deadline)
        os.unlink(path)
        if "gloo" in _readable:
            body = _bindings._dump_fr_trace_json()
        if body is None:
            return False
        half = path + ".part"
        with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(body)
        os.rename(half, path + _LAST_WORDS)
        return True
    except Exception:
        return False


def _ask(path, handler, deadline=None):
    """What the server answers; None: nothing until then, or for a second."""
    deadline = deadline or time.monotonic() + _PATIENCE
    request = "POST /handler/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % handler
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(_left(deadline))
            asking.connect(path)
            asking.sendall(request.encode())
            said = []
            while not said or said[-1]:
                asking.settimeout(_left(deadline))
                said.append(asking.recv(1 << 16))
        head, _, body = b"".join(said).partition(b"\r\n\r\n")
        return body if head.split(b" ")[1:2] == [b"200"] else None
    except OSError:
        return None


def _left(deadline):
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_left_alone(path, deadline):
    """Whether by then nobody is connected to the server; its socket has no name any more, so that nobody comes."""
    ending = b" " + os.fsencode(path) + b"\n"
    while True:
        with open(_SOCKETS, "rb") as sockets:
            # One is the server's own.
            if sum(line.endswith(ending) for line in sockets) <= 1:
                return True
        time.sleep(min(_MOMENT, _left(deadline)))


def end():
    """The interpreter is about to go away: nobody of ours is to run beside that.

    To shut the server down takes, with the interpreter's lock held, as long as whoever has asked it something: for
    ever where that asks a device that hangs, or where the server has not begun; five seconds where who asks does
    not go on. So it is done where the server has just answered and nobody is connected any more, and else
    it is left alone. Other ways to end a process run nothing of PyTorch's afterwards.
    """
    global _server
    server, path = _server, _path
    _server = None
    deadline = time.monotonic() + _PATIENCE
    is_ours = server is not None and path is not None and _server_of == os.getpid()
    answers = is_ours and _ask(path, "ping", deadline) is not None
    if last_words(deadline) and answers:
        try:
            if _is_left_alone(path, deadline):
                with _quietly():
                    server.shutdown()
        except Exception:
            pass


def _reset():
    # A forked child: the server, its socket and what it says are its parent's.
    global _path, _folder, _readable, _server, _started
    _path = _folder = _server = None
    _readable = ()
    _started = False
    _said.clear()


_box.on_reset.append(_reset)
