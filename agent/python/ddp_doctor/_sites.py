"""Maps frames to the user's source lines (sites).

The user's line is that of the innermost frame that belongs neither to PyTorch, nor to this package, nor
to standard library modules that call functions for others. Each frame on the way costs a look-up by the
identity of its code object. A line is numbered once per instruction; its callers are determined only
then, so they are those of the first call.
"""

import os
import sys
import threading

from . import _box, _words
from ._native import text

# Kinds of code. The values of the kinds other than USER are or-ed over the frames on the way.
USER = 0
# Code between the user's call and the collective: torch.distributed's own Python.
CALL = 1
# Code of PyTorch that communicates without a call of the user's: DDP, the autograd engine, FSDP, …
INTERNAL = _words.HIDDEN

_STDLIB = os.path.dirname(os.__file__) + os.sep
_STDLIB_FILES = frozenset(
    _STDLIB + name for name in ("contextlib.py", "functools.py", "runpy.py", "threading.py", "_weakrefset.py", "queue.py")
)
_STDLIB_FOLDERS = tuple(_STDLIB + name + os.sep for name in ("multiprocessing", "concurrent", "importlib"))
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CALL_FILES = (
    "distributed/distributed_c10d.py",
    "distributed/c10d_logger.py",
    "distributed/_functional_collectives.py",
    "distributed/_functional_collectives_impl.py",
    "distributed/collective_utils.py",
    "distributed/device_mesh.py",
    "distributed/nn/",
    "_ops.py",
    "_library/",
    "utils/_contextlib.py",
    "overrides.py",
)
_MOST_CODES = 16384
_MOST_PLACES = 4096
_MOST_CALLERS = 8
# Twice the number of user frames by which paths to a forward are distinguished.
_PATH = 8

# id(code) → [code, kind, {instruction: site}, extra]; keeping the code keeps its id unique.
codes = {}
# (file, function, line) → its first site
_places = {}
# (file, function, line, site of the caller) → site
_ways = {}
# (id(code), instruction, …) of a frame and its callers → site
_paths = {}
_torch = None
_C10D = None
_main_thread = threading.main_thread().ident


def _torch_folder():
    global _torch, _C10D
    if _torch is None:
        module = sys.modules.get("torch")
        file = getattr(module, "__file__", None)
        if file:
            _torch = os.path.dirname(file) + os.sep
            _C10D = _torch + os.path.join("distributed", "distributed_c10d.py")
    return _torch


def _kind(file):
    folder = _torch_folder()
    if folder and file.startswith(folder):
        inner = file[len(folder) :]
        return CALL if inner.startswith(_CALL_FILES) else INTERNAL
    if file.startswith(_OURS) or file in _STDLIB_FILES or file.endswith("typing_extensions.py"):
        return CALL
    if file.startswith(_STDLIB_FOLDERS) or file.startswith("<frozen "):
        return CALL
    if file.startswith("<eval_with_key>") or _is_generated(file):
        return INTERNAL
    if folder and file.startswith(os.path.join(os.path.dirname(folder[:-1]), "functorch", "")):
        return INTERNAL
    return USER


def _is_generated(file):
    """Whether torch.compile has generated this file: CACHE/ab/cab….py."""
    folder, name = os.path.split(file)
    cache, part = os.path.split(folder)
    if part != name[1:3]:
        return False
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return os.path.basename(cache).startswith("torchinductor_") or bool(chosen and cache == os.path.abspath(chosen))


def learn(code):
    """Adds a code object to `codes` and returns its entry."""
    if len(codes) >= _MOST_CODES:
        codes.clear()
        _paths.clear()
    file = code.co_filename
    entry = [code, _kind(file), {}, {} if file == _C10D else None]
    codes[id(code)] = entry
    return entry


def entry_of(code):
    entry = codes.get(id(code))
    if entry is None or entry[0] is not code:
        entry = learn(code)
    return entry


def _place(code, line):
    return code.co_filename, getattr(code, "co_qualname", code.co_name), line


def _define(place, caller):
    """Site of a location with the site `caller`; 0: no room."""
    way = place + (caller,)
    site = _ways.get(way)
    if site is None:
        site = 0
        if _box.is_open and len(_ways) < _MOST_PLACES:
            file, function, line = place
            site = _ways[way] = _box.lib.site(text(file), text(function), line or 0, caller)
            _places.setdefault(place, site)
    return site


def _callers(frame):
    """The user's frames from this one outwards, at most _MOST_CALLERS."""
    found = []
    while frame is not None and len(found) < _MOST_CALLERS:
        if not entry_of(frame.f_code)[1]:
            found.append(frame)
        frame = frame.f_back
    return found


def _number(entry, instruction, line, caller):
    """Site of an instruction, which is numbered if it is new."""
    site = entry[2].get(instruction)
    if site is not None:
        return site
    place = _place(entry[0], line)
    site = _places.get(place)
    if site is None:
        site = 0
        for frame in reversed(_callers(caller)):
            outer = _place(frame.f_code, frame.f_lineno)
            site = _places.get(outer) or _define(outer, site)
        site = _define(place, site)
    if _box.is_open:
        entry[2][instruction] = site
    return site


def path_of(frame):
    """Site of the innermost user frame, a different one for each call path; 0: none."""
    path = []
    innermost = frame
    while frame is not None and len(path) < _PATH:
        code = frame.f_code
        try:
            entry = codes[id(code)]
        except KeyError:
            entry = learn(code)
        if not entry[1]:
            path.append(id(code))
            path.append(frame.f_lasti)
        frame = frame.f_back
    path = tuple(path)
    try:
        return _paths[path]
    except KeyError:
        site = 0
    for frame in reversed(_callers(innermost)[: _PATH // 2]):
        site = _define(_place(frame.f_code, frame.f_lineno), site)
    if _box.is_open and len(_paths) < _MOST_PLACES:
        _paths[path] = site
    return site


def locate(frame):
    """`(site, flags)` of the innermost user frame at or outside this one."""
    flags = 0
    while frame is not None:
        code = frame.f_code
        try:
            entry = codes[id(code)]
        except KeyError:
            entry = learn(code)
        kind = entry[1]
        if kind:
            flags |= kind
            frame = frame.f_back
            continue
        try:
            site = entry[2][frame.f_lasti]  # saves the line, which is expensive to find
        except KeyError:
            site = _number(entry, frame.f_lasti, frame.f_lineno, frame.f_back)
        return site, flags & INTERNAL
    return _borrowed()


def _borrowed():
    """`(site, flags)` of the main thread's location, for a thread without user frames."""
    if threading.get_ident() != _main_thread:
        frame = sys._current_frames().get(_main_thread)
        while frame is not None:
            entry = entry_of(frame.f_code)
            if not entry[1]:
                site = _number(entry, frame.f_lasti, frame.f_lineno, frame.f_back)
                return site, _words.HIDDEN | _words.BORROWED_SITE
            frame = frame.f_back
    return 0, _words.HIDDEN


def site_of(frame):
    """Site of the innermost user frame; 0: none."""
    return locate(frame)[0]


def site_in(code, line):
    """Site of a line of this code, with any caller; 0: none."""
    place = _place(code, line)
    return _places.get(place) or _define(place, 0)


def site_of_traceback(traceback):
    """Site of the innermost user frame of a traceback; 0: none."""
    found = None
    while traceback is not None:
        entry = entry_of(traceback.tb_frame.f_code)
        if not entry[1]:
            found = (entry, traceback.tb_lasti, traceback.tb_lineno, traceback.tb_frame.f_back)
        traceback = traceback.tb_next
    return 0 if found is None else _number(*found)


def _reset():
    global _main_thread
    codes.clear()
    _places.clear()
    _ways.clear()
    _paths.clear()
    _main_thread = threading.main_thread().ident


_box.on_reset.append(_reset)
