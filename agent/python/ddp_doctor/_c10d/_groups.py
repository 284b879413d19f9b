"""The process groups of this process.

Groups are referenced weakly, so that dropping a group frees its communicators.
"""

import ctypes
import sys
import weakref

from .. import _box, _words
from .._native import text

# Number of the current initialization of the world, and of the next one.
epoch = 0
_next_epoch = 0
# group name → Group
_groups = {}
# id(PyTorch's group) → Group, for methods that are replaced.
by_id = {}
# PyTorch has no hooks, so its functions are replaced to record calls.
intercepts = False


class Group:
    __slots__ = ("name", "number", "generation", "reference", "is_native")

    def __init__(self, name, number, pg):
        self.name = name
        self.number = number
        self.generation = _box.generation
        try:
            self.reference = weakref.ref(pg)
        except TypeError:
            self.reference = lambda: None
        # Whether none of its backends is written in Python.
        self.is_native = intercepts and _is_native(pg)


def _is_native(pg):
    try:
        backends = [pg._get_backend(device) for device in pg._device_types]
    except Exception:  # a backend that is created at its first use
        return False
    return all(type(it).__module__.startswith(("torch._C.", "torch.distributed.")) for it in backends)


def name_of(pg):
    try:
        return str(pg.group_name)
    except Exception:
        pass
    try:  # before 2.4
        return sys.modules["torch.distributed.distributed_c10d"]._world.pg_names[pg]
    except Exception:
        return None


def backend_of(c10d, pg):
    try:
        name = str(c10d._world.pg_map[pg][0])
        if name != "undefined":
            return name
    except Exception:
        pass
    try:
        return str(c10d._world.pg_backend_config[pg])
    except Exception:
        return ""


def _timeout(pg):
    """The shortest timeout of the group's backends in milliseconds; None: unknown."""
    shortest = None
    for device in getattr(pg, "_device_types", ()):
        try:
            milliseconds = pg._get_backend(device).options._timeout.total_seconds() * 1000
        except Exception:
            continue
        if shortest is None or milliseconds < shortest:
            shortest = milliseconds
    return shortest


def record_timeout(pg):
    """Records the timeout of a group. Called after the group was created or its timeout changed."""
    number = number_of(pg)
    milliseconds = _timeout(pg) if number else None
    if milliseconds is not None and milliseconds > 0:
        _box.lib.group_timeout(number, int(milliseconds))


def add(c10d, pg, ranks, name=None):
    """Registers a new group; `ranks` are its global ranks in group order. `None`: it was registered before."""
    name = name_of(pg) or str(name)
    known = _groups.get(name)
    if known is not None and known.reference() is pg and known.generation == _box.generation:
        return None
    try:
        description = str(pg.group_desc)
    except Exception:
        description = ""
    ranks = [int(rank) for rank in ranks]
    members = (ctypes.c_uint32 * len(ranks))(*ranks)
    backend = backend_of(c10d, pg)
    number = _box.lib.group(text(name), text(description), text(backend), epoch, members, len(ranks))
    group = Group(name, number, pg)
    _groups[name] = group
    try:
        record_timeout(pg)
    except Exception:
        pass
    return group


def find(pg):
    """The Group of PyTorch's group; `None`: unknown."""
    group = by_id.get(id(pg))
    if group is not None and group.generation == _box.generation and group.reference() is pg:
        return group
    return None


def number_of(pg):
    """Number of a group; 0: none."""
    group = _groups.get(name_of(pg)) if pg is not None else None
    if group is None or group.generation != _box.generation:
        return 0
    return group.number


def leave(pg):
    """Records that this process leaves a group, or all groups (None). Returns them, for `_capture.unhook`."""
    if pg is None:
        left = list(_groups.values())
        _groups.clear()
    else:
        group = _groups.pop(name_of(pg), None)
        left = [] if group is None else [group]
    for group in left:
        if group.generation == _box.generation:
            _box.lib.group_destroyed(group.number)
    by_id.clear()
    by_id.update((id(group.reference()), group) for group in _groups.values())
    return [(group, group.reference()) for group in left]


def world_begins():
    global epoch
    epoch = _next_epoch


def world_began():
    global _next_epoch
    _next_epoch = epoch + 1


def _reset():
    global epoch, _next_epoch
    epoch = _next_epoch = 0
    _groups.clear()
    by_id.clear()


_box.on_reset.append(_reset)
