"""Records groups that are being created, before the creation waits for their members.

The members find each other by the group's name, which PyTorch derives from a counter of each process.
Name and members are recorded as this process passes them, whether or not it is a member.
"""

import ctypes
from _thread import get_ident

from .. import _box, _words
from .._native import Creation, text
from . import _groups

# Thread → [op, site, (global ranks, backend) of the parent group, call] of its current creation.
_making = {}


def enter(op, site, parent=None):
    """Called before this thread creates a group, whose members are not known yet."""
    _making[get_ident()] = [op, site, parent, None]


def leave():
    """Called when the creation has returned or raised."""
    making = _making.pop(get_ident(), None)
    if making is not None and making[3] is not None and _box.is_open:
        _box.lib.returned(making[3])


def begins(name, ranks, backend, description, takes_all):
    """Records the current creation of this thread once. `ranks` are global."""
    making = _making.get(get_ident())
    if making is None or making[3] is not None or not _box.is_open:
        return
    members = (ctypes.c_uint32 * len(ranks))(*ranks)
    group = Creation(
        making[0],
        _groups.epoch,
        text(name),
        text(description or ""),
        text(backend),
        members,
        len(ranks),
        making[1],
        takes_all,
    )
    making[3] = _box.lib.creating(ctypes.byref(group))


def split_begins(name, ranks):
    """Like `begins`, for a split: `ranks` are ranks in the parent group."""
    making = _making.get(get_ident())
    if making is not None and making[2] is not None:
        of_parent, backend = making[2]
        begins(name, [of_parent[rank] for rank in ranks], backend, "", False)


def _reset():
    _making.clear()


_box.on_reset.append(_reset)
