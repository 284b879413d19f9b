"""Starts and stops recording the calls of a group.

Hooks are removed when a group is destroyed and before the interpreter exits, since PyTorch crashes if it destroys a
hook after the interpreter.
"""

from .. import _box
from . import _extension, _groups, _hooks, _kernels

# Groups whose hooks are installed, including groups being destroyed.
_hooked = []


def register(c10d, pg, ranks, name=None):
    """Registers a new group and records its calls; `ranks` are its global ranks in group order."""
    if not _box.is_open:
        return
    group = _groups.add(c10d, pg, ranks, name)
    if group is None:
        return
    try:
        _capture(pg, group)
    except Exception as error:
        _kernels.note_uncaptured("calls from C++" if _groups.intercepts else "calls", error)


def register_missing(c10d):
    """Registers groups that were created in ways that are not intercepted."""
    for pg, ranks in list(c10d._world.pg_group_ranks.items()):
        if pg in c10d._world.pg_map and isinstance(pg, c10d.ProcessGroup):
            register(c10d, pg, sorted(ranks, key=ranks.get))


def _capture(pg, group):
    """Starts recording the calls of a group."""
    _groups.by_id[id(pg)] = group
    if _groups.intercepts:
        _kernels.see()
        return
    before, after = _extension.hooks_of(group) or _hooks.make(group)
    pg.register_pre_hook(_hooks.HOOK_ID, before)
    pg.register_post_hook(_hooks.HOOK_ID, after)
    _hooked[:] = [other for other in _hooked if other.reference() is not None]
    _hooked.append(group)


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
    _groups.by_id.clear()
    _kernels.forget()


def _reset():
    _hooked.clear()


_box.on_reset.append(_reset)
