"""Reads a few elements of parameters, so that the replicas of a model can be compared.

Nothing is communicated, allocated by PyTorch or read from a device: elements of parameters in host memory are
read from their addresses, and recorded. Replicas must be equal before a forward that follows a synchronized
backward. Which elements are read follows from the number of such backwards, so that every rank reads the same.
"""

import ctypes
import os
import struct
import sys

from .. import _box, _sites, _words
from .._native import ParameterList

# Parameters per forward, and elements per parameter.
_PARAMETERS = 2
_ELEMENTS = 8

is_enabled = sys.byteorder == "little" and os.environ.get("DDP_DOCTOR_FINGERPRINT") != "0"
_parameter_type = None
_strided = None
# dtype → number of the dtype, and an integer type of its size.
_kinds = {}
# `ParameterList`, without lines.
_RECORD = struct.Struct("=Q4IQ16x2I%dII4x" % _ELEMENTS)
_SIZE = ctypes.sizeof(ParameterList)


def _prepare():
    global _parameter_type, _strided
    torch = sys.modules["torch"]
    _strided = torch.strided
    for name, kind in (
        ("float32", ctypes.c_uint32),
        ("float64", ctypes.c_uint64),
        ("float16", ctypes.c_uint16),
        ("bfloat16", ctypes.c_uint16),
    ):
        _kinds[getattr(torch, name)] = (_words.DTYPES[name], kind)
    _parameter_type = torch.nn.Parameter


def record(model, module, frame):
    """Records elements of the next parameters of a model. `frame` calls its forward."""
    if _parameter_type is None:
        _prepare()
    rounds = model.finished
    described = model.described
    inner = module.module
    site = 0
    for at in range(min(_PARAMETERS, described)):
        index = (rounds * _PARAMETERS + at) % described
        name = model.lines[index].split(" ", 2)[2]
        read = _read(find(inner, name), rounds)
        if read is None:
            continue
        dtype, values = read
        site = site or _sites.site_of(frame)
        count = len(values)
        values.extend([0] * (_ELEMENTS - count))
        _box.lib.packed_parameters(
            _RECORD.pack(_SIZE, _words.VALUES, model.group, model.number, index, rounds, site, dtype, *values, count)
        )


def find(module, name):
    """The parameter with this name; None if the model has changed."""
    path = name.split(".")
    for part in path[:-1]:
        module = module._modules.get(part)
        if module is None:
            return None
    return module._parameters.get(path[-1])


def _read(parameter, rounds):
    """The number of the dtype, and the bits of up to `_ELEMENTS` elements; None if they are not in host memory."""
    if type(parameter) is not _parameter_type or not parameter.is_cpu or parameter.layout is not _strided:
        return None
    kind = _kinds.get(parameter.dtype)
    if kind is None or not parameter.is_contiguous():
        return None
    dtype, integer = kind
    size = ctypes.sizeof(integer)
    number = parameter.numel()
    address = parameter.data_ptr()
    end = (parameter.storage_offset() + number) * size
    if not number or not address or parameter.untyped_storage().nbytes() < end:  # storage that was freed
        return None
    count = min(_ELEMENTS, number)
    stride = number // count
    read = (integer * ((count - 1) * stride + 1)).from_address(address + rounds % stride * size)[::stride]
    return dtype, read if size < 8 else [value >> 32 for value in read]
