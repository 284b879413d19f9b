"""Maps frames to the user's source lines (sites).

The user's line is that of the innermost frame that belongs neither to PyTorch, nor to this package, nor to the
standard library, nor to an installed package. Frames of installed packages between that line and the call are
recorded with it: they are sites whose callers lead to the user's line. Each frame on the way costs a look-up by
the identity of its code object. A line is numbered once per instruction, and once per way through installed
packages; its callers are determined only then, so they are those of the first call.
"""

import sys
import threading

from . import _box, _origin, _words
from ._native import text
from ._origin import CALL, INTERNAL, LIBRARY, USER  # noqa: F401

_MOST_CODES = 16384
_MOST_PLACES = 4096
_MOST_CALLERS = 8
# Twice the number of frames by which paths to a forward are distinguished.
_PATH = 8
# Maximum number of frames of installed packages that are recorded: the innermost ones and the outermost ones.
_INNER, _OUTER = 12, 4
# Twice the number of such frames by which ways are distinguished, innermost first.
_MOST_FRAMES = 128

# id(code) → [code, kind, {instruction: site}, extra]; keeping the code keeps its id unique.
codes = {}
# id(code) → file, of code whose own file name is that of shipped code
_files = {}
# (file, function, line) → its first site
_places = {}
# (file, function, line, site of the caller) → site
_ways = {}
# (id(code), instruction, …) of a frame and its callers → site
_paths = {}
# The same for the frames of installed packages and the user's frame or the thread's starter.
_chains = {}
# Attribute of a thread: `(whether it is in an installed package, place)` of its starter and callers, innermost first.
STARTER = "_ddp_doctor_starter"
_main_thread = threading.main_thread().ident


def learn(code):
    """Adds a code object to `codes` and returns its entry."""
    if len(codes) >= _MOST_CODES:
        codes.clear()
        _files.clear()
        _paths.clear()
        _chains.clear()
    file = code.co_filename
    if file == _origin.SHIPPED:
        file = _files[id(code)] = _shipped_from(code) or file
    kind, of_c10d = _origin.of(file)
    entry = [code, kind, {}, {} if of_c10d else None]
    codes[id(code)] = entry
    return entry


def entry_of(code):
    entry = codes.get(id(code))
    if entry is None or entry[0] is not code:
        entry = learn(code)
    return entry


def _shipped_from(code):
    """File that a function was shipped from, which its globals name, as long as a frame of this thread executes it."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            file = frame.f_globals.get("__file__")
            return file if isinstance(file, str) else None
        frame = frame.f_back
    return None


def _place(code, line):
    file = code.co_filename
    if file == _origin.SHIPPED:
        file = _files.get(id(code), file)
    return file, getattr(code, "co_qualname", code.co_name), line


def _define(place, caller, library=False):
    """Site of a location with the site `caller`; 0: no room."""
    way = place + (caller,)
    site = _ways.get(way)
    if site is None:
        site = 0
        if _box.is_open and len(_ways) < _MOST_PLACES:
            file, function, line = place
            define = _box.lib.library_site if library else _box.lib.site
            site = _ways[way] = define(text(file), text(function), line or 0, caller)
            if not library:
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
    """Site of an instruction of the user's code, which is numbered if it is new."""
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


def _lead(places, site):
    """Site of the innermost of these places in installed packages, innermost first, called from `site`."""
    if len(places) > _INNER + _OUTER:
        places = places[:_INNER] + places[-_OUTER:]
    for place in reversed(places):
        site = _define(place, site, library=True) or site
    return site


def through(start, user):
    """Site of the user's frame with the frames of installed packages from `start` to it.

    `user`: None: there is no user's frame.
    """
    way = []
    frame = start
    while frame is not user and len(way) < _MOST_FRAMES:
        code = id(frame.f_code)
        entry = codes.get(code) or learn(frame.f_code)
        if entry[1] == LIBRARY:
            way.append(code)
            way.append(frame.f_lasti)
        frame = frame.f_back
    if user is not None:
        way.append(id(user.f_code))
        way.append(user.f_lasti)
    else:
        way.append(starter_of_thread())
    way = tuple(way)
    try:
        return _chains[way]
    except KeyError:
        site = _define_way(start, user)
    if _box.is_open and len(_chains) < _MOST_PLACES:
        _chains[way] = site
    return site


def _define_way(start, user):
    if user is not None:
        site = _number(entry_of(user.f_code), user.f_lasti, user.f_lineno, user.f_back)
    else:
        site = _of_starter(starter_of_thread() or ())
    places = []
    frame = start
    while frame is not user:
        if entry_of(frame.f_code)[1] == LIBRARY:
            places.append(_place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return _lead(places, site)


def _of_starter(starter):
    """Site of the line that started a thread."""
    site = 0
    for library, place in reversed(starter):
        site = _define(place, site, library) or site
    return site


def starter_of_thread():
    """The line at which this thread was started (`STARTER`); None: unknown, or the main thread."""
    return getattr(threading._active.get(threading.get_ident()), STARTER, None)


def starter_at(frame):
    """The line of the user's frame at or outside this one, with frames of installed packages inside it."""
    places = []
    while frame is not None and len(places) < _INNER + _OUTER:
        code = frame.f_code
        kind = entry_of(code)[1]
        if kind == USER or kind == LIBRARY:
            places.append((kind == LIBRARY, _place(code, frame.f_lineno)))
        if kind == USER:
            return tuple(places)
        frame = frame.f_back
    return tuple(places) + (starter_of_thread() or ())


def path_of(frame):
    """Site of the innermost frame outside of PyTorch, a different one for each call path; 0: none."""
    path = []
    found = []
    reached = False
    while frame is not None and (len(path) < _PATH or not reached):
        code = frame.f_code
        try:
            entry = codes[id(code)]
        except KeyError:
            entry = learn(code)
        kind = entry[1]
        if kind == USER or kind == LIBRARY:
            if len(path) < _PATH or kind == USER:
                path.append(id(code))
                path.append(frame.f_lasti)
                found.append((kind, frame))
                reached = reached or kind == USER
        frame = frame.f_back
    path = tuple(path)
    try:
        return _paths[path]
    except KeyError:
        site = 0
    for kind, frame in reversed(found):
        site = _define(_place(frame.f_code, frame.f_lineno), site, kind == LIBRARY)
    if _box.is_open and len(_paths) < _MOST_PLACES:
        _paths[path] = site
    return site


def locate(frame):
    """`(site, flags)` of the innermost user frame at or outside this one."""
    flags = 0
    start = frame
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
        if flags & LIBRARY:
            return through(start, frame), flags & INTERNAL
        try:
            site = entry[2][frame.f_lasti]  # saves the line, which is expensive to find
        except KeyError:
            site = _number(entry, frame.f_lasti, frame.f_lineno, frame.f_back)
        return site, flags & INTERNAL
    if flags & LIBRARY or starter_of_thread() is not None:
        return through(start, None), flags & INTERNAL
    return _borrowed()


def _borrowed():
    """`(site, flags)` of the main thread's location, for a thread of native code without frames."""
    if threading.get_ident() != _main_thread:
        start = frame = sys._current_frames().get(_main_thread)
        while frame is not None and entry_of(frame.f_code)[1]:
            frame = frame.f_back
        if frame is not None:
            return through(start, frame), _words.HIDDEN | _words.BORROWED_SITE
    return 0, _words.HIDDEN


def site_of(frame):
    """Site of the innermost user frame; 0: none."""
    return locate(frame)[0]


def site_in(code, line):
    """Site of a line of this code, with any caller; 0: none."""
    place = _place(code, line)
    return _places.get(place) or _define(place, 0)


def site_of_traceback(traceback):
    """Site of the innermost user frame of a traceback, or of those that called it; 0: none."""
    if traceback is None:
        return 0
    caller = traceback.tb_frame.f_back
    user, libraries = None, []
    while traceback is not None:
        frame = traceback.tb_frame
        entry = entry_of(frame.f_code)
        if entry[1] == USER:
            user, libraries = (entry, traceback.tb_lasti, traceback.tb_lineno, frame.f_back), []
        elif entry[1] == LIBRARY:
            libraries.append(_place(frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    if user is not None:
        site = _number(*user)
    elif libraries:
        site = site_of(caller)
    else:
        return 0
    return _lead(libraries[::-1], site)


def _reset():
    global _main_thread
    codes.clear()
    _files.clear()
    _places.clear()
    _ways.clear()
    _paths.clear()
    _chains.clear()
    _main_thread = threading.main_thread().ident


_box.on_reset.append(_reset)
