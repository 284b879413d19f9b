"""The C API of libddp_doctor.so.

The functions neither block nor call back, so the GIL is not released (PyDLL).
"""

import ctypes
import os
import re

from . import _words


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class Identity(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int32), ("world_size", ctypes.c_int32), ("local_rank", ctypes.c_int32)]


class CallRecord(ctypes.Structure):
    _fields_ = [
        ("op", ctypes.c_uint8),
        ("dtype", ctypes.c_uint8),
        ("reduce_op", ctypes.c_uint8),
        ("ndim", ctypes.c_uint8),
        ("flags", ctypes.c_uint16),
        ("reserved", ctypes.c_uint16),
        ("group", ctypes.c_uint32),
        ("site", ctypes.c_uint32),
        ("tensors", ctypes.c_uint32),
        ("root", ctypes.c_int32),
        ("tag", ctypes.c_int32),
        ("reserved2", ctypes.c_uint32),
        ("numel", ctypes.c_uint64),
        ("dims", ctypes.c_uint32 * _words.MAX_DIMS),
    ]


class Creation(ctypes.Structure):
    _fields_ = [
        ("op", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("name", Text),
        ("description", Text),
        ("backend", Text),
        ("members", ctypes.POINTER(ctypes.c_uint32)),
        ("member_count", ctypes.c_size_t),
        ("site", ctypes.c_uint32),
        ("takes_all", ctypes.c_uint32),
    ]


class MemorySample(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("device", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("total", ctypes.c_uint64),
        ("allocated", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("peak", ctypes.c_uint64),
        ("split", ctypes.c_uint64),
        ("retries", ctypes.c_uint64),
        ("ooms", ctypes.c_uint64),
        ("largest", ctypes.c_uint64),
    ]


class ParameterList(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("fact", ctypes.c_uint32),
        ("group", ctypes.c_uint32),
        ("model", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("lines", Text),
        ("site", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("values", ctypes.c_uint32 * 8),
        ("value_count", ctypes.c_uint32),
    ]


# An unknown value of a sample.
UNKNOWN = 2**64 - 1


class Address(int):
    """Address of a structure, which it keeps alive."""

    def __new__(cls, structure):
        self = super().__new__(cls, ctypes.addressof(structure))
        self._structure = structure
        return self


# An address without a user at the end of a text.
_CUT_ADDRESS = re.compile(rb'(:\\*/\\*/)[^@\s"<>`]*\Z')


def text(value, limit=4096):
    """Converts a text for the C API, cut at a character boundary."""
    data = str(value).encode("utf-8", "replace")
    if len(data) > limit:
        data = data[:limit].decode("utf-8", "ignore").encode("utf-8")
        # A part of a user or password would not be recognized as one.
        data = _CUT_ADDRESS.sub(rb"\1", data)
    return Text(data, len(data))


def path():
    """Path of the library."""
    named = os.environ.get("DDP_DOCTOR_LIBRARY")
    if named:
        return named
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "libddp_doctor.so")


class Library:
    """The functions of the library."""

    def __init__(self, file):
        if not os.path.isfile(file):
            raise OSError("%s: no such file" % file)
        lib = ctypes.PyDLL(file)
        version = lib.ddp_doctor_abi_version
        version.restype = ctypes.c_uint32
        version.argtypes = []
        found = version()
        if found != _words.ABI_VERSION:
            raise OSError("%s: interface version %d, not %d" % (file, found, _words.ABI_VERSION))

        u32, u64, i32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32

        def function(name, result, *arguments):
            entry = getattr(lib, "ddp_doctor_" + name)
            entry.restype = result
            entry.argtypes = arguments
            return entry

        self.library = lib
        self.open = function("open", i32, Text, ctypes.POINTER(Identity))
        self.set_identity = function("set_identity", None, ctypes.POINTER(Identity))
        self.is_open = function("is_open", i32)
        self.string = function("string", u32, Text)
        self.site = function("site_from", u32, Text, Text, u32, u32)
        self.library_site = function("library_site", u32, Text, Text, u32, u32)
        self.group = function("group", u32, Text, Text, Text, u32, ctypes.POINTER(u32), ctypes.c_size_t)
        self.creating = function("creating", u64, ctypes.POINTER(Creation))
        self.group_timeout = function("group_timeout", None, u32, u64)
        self.group_destroyed = function("group_destroyed", None, u32)
        self.splits = function("splits", None, u64, i32, ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t)
        self.unawaited = function("unawaited", None, u64, u32)
        self.step = function("step", u32)
        self.forward = function("forward", u32, u32, ctypes.c_int64, u32)
        self.phase_begin = function("phase_begin", None, u32)
        self.phase_end = function("phase_end", None, u32)
        self.exception = function("exception", None, i32, Text, u32)
        self.input_ended = function("input_ended", None, u32)
        self.last_input = function("last_input", None, u64, u32)
        self.spent = function("spent", None, i32, u64, u32)
        self.exit = function("exit_at", None, i32, Text, u32)
        self.note = function("note", None, i32, Text)
        self.setting = function("setting", None, Text, Text)
        self.memory = function("memory", None, ctypes.POINTER(MemorySample))
        self.parameters = function("parameters", None, ctypes.POINTER(ParameterList))
        # For a packed record, which is several times faster than a structure.
        self.packed_parameters = lib["ddp_doctor_parameters"]
        self.packed_parameters.restype, self.packed_parameters.argtypes = None, [ctypes.c_char_p]
        # (`Address` of a record, group, site) → id of the call; 0: nothing was recorded.
        self.issued_at = function("issued_at", u64, ctypes.c_void_p, u32, u32)
        self.returned = function("returned", None, u64)
        self.wait_begin = function("wait_begin", None, u64, u32)
        self.wait_end = function("wait_end", None, u64)


def load():
    """Loads the library. Raises OSError or AttributeError if it does not exist or does not match."""
    return Library(path())
