"""The process groups of this process, and the hooks on them.

Groups are referenced weakly, so that dropping a group frees its communicators. Hooks are removed when
a group is destroyed and before the interpreter exits, since PyTorch crashes if it destroys a hook
after the interpreter.
"""

import ctypes
import sys
import weakref

from .. import _box, _words
from .._native import text
from . import _hooks, _kernels

# Number of the current initialisation of the world, and of the next one.
epoch = 0
_next_epoch = 0
# group name → Group
_groups = {}
# id(PyTorch's group) → Group, if calls are intercepted.
by_id = {}
# PyTorch has no hooks, so its functions are replaced to record calls.
intercepts = False
# The note that calls are not captured was recorded.
_noted = False
# Groups whose hooks are installed, including groups being destroyed.
_hooked = []


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


def register(c10d, pg, ranks, name=None):
    """Registers a new group; `ranks` are its global ranks in group order."""
    if not _box.is_open:
        return
    name = name_of(pg) or str(name)
    known = _groups.get(name)
    if known is not None and known.reference() is pg and known.generation == _box.generation:
        return
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
    try:
        _capture(pg, group)
    except Exception as error:
        _note_uncaptured(error)


def _capture(pg, group):
    """Starts recording the calls of a group."""
    if intercepts:
        by_id[id(pg)] = group
        _kernels.see()
        return
    before, after = _hooks.make(group)
    pg.register_pre_hook(_hooks.HOOK_ID, before)
    pg.register_post_hook(_hooks.HOOK_ID, after)
    _hooked[:] = [other for other in _hooked if other.reference() is not None]
    _hooked.append(group)


def _note_uncaptured(error):
    """Records once that calls are not captured, and why."""
    global _noted
    if not _noted:
        _noted = True
        import torch

        what = "calls from C++" if intercepts else "calls"
        why = "%s: %s" % (type(error).__name__, error)
        _box.note(_words.NO_HOOKS, "with PyTorch %s %s are not captured (%s)" % (torch.__version__, what, why))


def find(pg):
    """The Group of PyTorch's group; `None`: unknown."""
    group = by_id.get(id(pg))
    if group is not None and group.generation == _box.generation and group.reference() is pg:
        return group
    return None


def register_missing(c10d):
    """Registers groups that were created in ways that are not intercepted."""
    for pg, ranks in list(c10d._world.pg_group_ranks.items()):
        if pg in c10d._world.pg_map and isinstance(pg, c10d.ProcessGroup):
            register(c10d, pg, sorted(ranks, key=ranks.get))


def number_of(pg):
    """Number of a group; 0: none."""
    group = _groups.get(name_of(pg)) if pg is not None else None
    if group is None or group.generation != _box.generation:
        return 0
    return group.number


def leave(pg):
    """Records that this process leaves a group, or all groups (None). Returns them, for `unhook`."""
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


def unhook(left):
    for group, pg in left:
        if group in _hooked:
            _hooked.remove(group)
            _unhook(group, pg)


def _unhook(group, pg):
    # A forked child must not use its parent's groups: a thread of the parent may have held their locks.
    if pg is None or group.generation != _box.generation:
        return
    try:
        pg.unregister_pre_hook(_hooks.HOOK_ID)
        pg.unregister_post_hook(_hooks.HOOK_ID)
    except Exception:
        pass


def unhook_all():
    for group in list(_hooked):
        _unhook(group, group.reference())
    _hooked.clear()
    by_id.clear()
    _kernels.forget()


def world_begins():
    global epoch
    epoch = _next_epoch


def world_began():
    global _next_epoch
    _next_epoch = epoch + 1


def _reset():
    global epoch, _next_epoch, _noted
    epoch = _next_epoch = 0
    _noted = False
    _groups.clear()
    by_id.clear()
    _hooked.clear()


_box.on_reset.append(_reset)
