"""Finds the group of a call from C++ on PyTorch before 2.4.

The kernel of an operator gets the group as a ScriptObject, which these versions cannot convert to the group's Python
object. Both lead to the same C++ object: the Python object holds its address, and so does the only slot of the
ScriptObject. The memory is read through /proc/self/mem, where a wrong address is an error and no crash.

Source: PyTorch 2.1 to 2.3, `torch/csrc/jit/api/object.h` (`Object`), `aten/src/ATen/core/ivalue_inl.h`
(`ivalue::Object`), pybind11 `detail/common.h` (`instance`).
"""

import os
import struct

from .. import _box
from . import _groups

# Python object → C++ object, if it has one base class.
_VALUE = 16
# `ivalue::Object` → begin of its slots: three words of the reference count, and the type. In 2.3; before.
_SLOTS = (80, 88)
_NO_ADDRESS = (OSError, OverflowError)
_word = struct.Struct("=Q")

_memory = None


def _read(address):
    global _memory
    if _memory is None:
        _memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    return _word.unpack(os.pread(_memory, _word.size, address))[0]


def _places(script_object):
    """Addresses of which one is that of the object in the slot."""
    value = _read(_read(id(script_object) + _VALUE))
    for offset in _SLOTS:
        try:
            yield _read(_read(value + offset))
        except _NO_ADDRESS:
            pass


def group_of(script_object):
    """The Python object of the group, or None if it is unknown. Raises if the memory is not as expected."""
    groups = [group.reference() for group in _groups.by_id.values()]
    known = {_read(id(pg) + _VALUE): pg for pg in groups if pg is not None}
    functions = {_read(place) for place in known}
    is_group = False
    for place in _places(script_object):
        if place in known:
            return known[place]
        try:
            is_group = is_group or _read(place) in functions  # by its virtual functions
        except _NO_ADDRESS:
            pass
    if is_group:
        return None
    raise LookupError("the layout of a ScriptObject is unknown")


def _reset():
    """The file shows the memory of the process that opened it."""
    global _memory
    if _memory is not None:
        os.close(_memory)
        _memory = None


_box.on_reset.append(_reset)
