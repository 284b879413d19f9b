"""Groups that are being made: recorded before anybody waits for their members.

A group's makers meet by its name, which PyTorch makes out of a counter of each process. So what is
recorded is the name and the members as this process asks for them, wherever it is a member or not.
"""

import ctypes
import os
from _thread import get_ident

from . import _box, _groups, _words
from ._native import Creation, text

# Thread → [op, site, (global ranks, backend) of the parent group, call]: what it makes now.
_making = {}


def enter(op, site, parent=None):
    """This thread is about to make a group; who its members are is not known yet."""
    _making[get_ident()] = [op, site, parent, None]


def leave():
    """It is made, or failed."""
    making = _making.pop(get_ident(), None)
    if making is not None and making[3] is not None and _box.is_open:
        _box.lib.returned(making[3])


def begins(name, ranks, backend, description, takes_all):
    """Records what this thread makes, unless that was done. `ranks` are global."""
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
    """The same of a split, which knows its members by their ranks in the parent group."""
    making = _making.get(get_ident())
    if making is not None and making[2] is not None:
        of_parent, backend = making[2]
        begins(name, [of_parent[rank] for rank in ranks], backend, "", False)


def takes_all(backend):
    """Whether making a group of this backend takes all its members."""
    return "gloo" in str(backend) and not os.environ.get("TORCH_GLOO_LAZY_INIT")


def _reset():
    _making.clear()


_box.on_reset.append(_reset)
