"""Records collectives and messages.

Calls come from PyTorch's hooks (2.14 and later) or from the interception of earlier versions
(`_methods`, `_kernels`). Both describe a call with the attributes of PyTorch's `PreHookArgs`; for an
intercepted call this is `Arguments`.

This is the reference: `libddp_doctor_python.so` does the same for calls without anything unusual
(`_extension`), and passes all others to `issue`.
No tensor and no Work is kept, and only the first tensor of a list is read, since reading a hook's list
creates a Python object for each tensor.

Nothing here may raise: an exception would surface in the user's collective.
"""

import ctypes
import math
import sys

from .. import _box, _sites, _words
from .._ddp import _buckets
from .._native import Address, CallRecord
from .._process import _exceptions, _memory
from . import _calls, _init

HOOK_ID = 0x44445044  # "DDPD"

# Which tensor of a call is recorded.
_NONE, _INPUT, _OUTPUT, _LIST = range(4)

# HookOpName → (op, tensor, has a root or peer, has more arguments in the caller's locals)
_OPS = {
    "SEND": (_words.SEND, _INPUT, True, True),
    "RECV": (_words.RECV, _OUTPUT, True, True),
    "BROADCAST": (_words.BROADCAST, _INPUT, True, False),
    "ALLREDUCE": (_words.ALL_REDUCE, _INPUT, False, True),
    "REDUCE": (_words.REDUCE, _INPUT, True, True),
    "ALLGATHER": (_words.ALL_GATHER, _INPUT, False, False),
    "ALLGATHER_BASE": (_words.ALL_GATHER, _INPUT, False, False),
    "REDUCE_SCATTER": (_words.REDUCE_SCATTER, _OUTPUT, False, True),
    "REDUCE_SCATTER_BASE": (_words.REDUCE_SCATTER, _OUTPUT, False, True),
    "ALLTOALL": (_words.ALL_TO_ALL, _LIST, False, True),
    "ALLTOALL_BASE": (_words.ALL_TO_ALL, _INPUT, False, True),
    "BARRIER": (_words.BARRIER, _NONE, False, False),
    "SCATTER": (_words.SCATTER, _OUTPUT, True, False),
    "GATHER": (_words.GATHER, _INPUT, True, False),
    "ALLREDUCE_COALESCED": (_words.ALL_REDUCE_COALESCED, _LIST, False, True),
    "ALLGATHER_COALESCED": (_words.ALL_GATHER_COALESCED, _LIST, False, True),
    "ALLGATHER_INTO_TENSOR_COALESCED": (_words.ALL_GATHER_COALESCED, _LIST, False, True),
    "REDUCE_SCATTER_TENSOR_COALESCED": (_words.REDUCE_SCATTER_COALESCED, _LIST, False, True),
    # Recorded when the Python function is called.
    "SPLIT": None,
}
# c10d's functions that pass several calls as one. PyTorch 2.14 names it to the hook like one of them.
_COALESCING = ("_coalescing_manager", "all_reduce_coalesced", "all_gather_coalesced")
_COALESCED = {
    _OPS[name][0]: _OPS[coalesced]
    for name, coalesced in (
        ("ALLREDUCE", "ALLREDUCE_COALESCED"),
        ("ALLGATHER", "ALLGATHER_INTO_TENSOR_COALESCED"),
        ("REDUCE_SCATTER", "REDUCE_SCATTER_TENSOR_COALESCED"),
    )
}
# Names of c10d's local variables with the list of tensors, by op.
_LISTS = {
    _words.ALL_TO_ALL: ("input_tensor_list",),
    _words.ALL_REDUCE_COALESCED: ("tensors",),
    _words.ALL_GATHER_COALESCED: ("input_tensor_list", "inputs"),
    _words.REDUCE_SCATTER_COALESCED: ("outputs",),
}
_UNKNOWN = (_words.OTHER, _INPUT, True, False)
_NOT_SAID = object()
_MOST_RECORDS = 4096
_getframe = sys._getframe
# Returns the exception being handled; since Python 3.11 without building a tuple.
_exception = getattr(sys, "exception", None) or (lambda: sys.exc_info()[1])
_locate = _sites.locate
_HIDDEN = _words.HIDDEN
_ASYNC = _words.ASYNC
_ALL_REDUCE = _words.ALL_REDUCE
_ALL_TO_ALL = _words.ALL_TO_ALL
_P2P = (_words.SEND, _words.RECV)
_sample_memory = _memory.sample
# c10d's functions that wait for their message. Since 2.7 they call isend() and irecv().
_BLOCKING = ("send", "recv")

# In place of a number: PyTorch has no hook for it, and `_methods` always replaces its method.
UNHOOKED = -1
# Number of an operation (PyTorch's HookOpName; of an intercepted one the position in _OPS) → entry in _OPS.
_ops = {UNHOOKED: (_words.MONITORED_BARRIER, _NONE, False, False)}
# Name of an operation → its number.
numbers = {}
# torch.dtype → number
_dtypes = {}
# id(ReduceOp.SUM) → number; the values are attributes of a class that lives as long as PyTorch.
_reduce_ops = {}
_reduce_op_type = ()
# torch.Tensor and two of its getters, and what disables `__torch_function__`.
_tensor = _dtype_of = _shape_of = _without_subclasses = None
# Signature → (record, reference to it)
_records = {}


def prepare(c10d, intercepts):
    """Reads PyTorch's constants. `c10d` is torch.distributed.distributed_c10d."""
    global _reduce_op_type, _tensor, _dtype_of, _shape_of, _without_subclasses
    import torch

    _tensor = torch.Tensor
    _dtype_of, _shape_of = _tensor.dtype.__get__, _tensor.shape.__get__
    _without_subclasses = torch._C.DisableTorchFunctionSubclass

    bindings = torch._C._distributed_c10d
    names = None if intercepts else bindings.HookOpName
    for position, (name, entry) in enumerate(_OPS.items()):
        value = getattr(names, name, None) if names is not None else position
        if value is not None:
            if intercepts and entry is not None:  # before 2.7 the options do not contain async_op
                entry = entry[:3] + (True,)
            numbers[name] = int(value)
            _ops[int(value)] = entry
    for name, number in _words.DTYPES.items():
        dtype = getattr(torch, name, None)
        if dtype is not None:
            _dtypes[dtype] = number
    for name, number in _words.REDUCE_OPS.items():
        value = getattr(c10d.ReduceOp, name, None)
        if value is not None:
            _reduce_ops[id(value)] = number
    _reduce_op_type = c10d.ReduceOp
    _calls.prepare(c10d)


class Arguments:
    """An intercepted call, with the attributes of PyTorch's `PreHookArgs` and those that they lack."""

    __slots__ = ("name", "async_op", "input_tensors", "output_tensors", "root", "reduce_op", "tag", "splits")

    def __init__(self, name, inputs, outputs=(), root=-1, async_op=True, reduce_op=None, tag=None, splits=()):
        self.name = name
        self.input_tensors = inputs
        self.output_tensors = outputs
        self.root = root
        self.async_op = async_op
        self.reduce_op = reduce_op
        self.tag = tag
        # (input split sizes, output split sizes)
        self.splits = splits


def _reduce_op(value):
    """Number of a reduction operator that is not one of the cached objects."""
    for name, number in _words.REDUCE_OPS.items():
        plain = getattr(_reduce_op_type, name, None)
        try:
            if plain is not None and value == plain:
                return number
        except Exception:
            pass
    name = str(value).rsplit(".", 1)[-1].upper()
    return _words.REDUCE_OPS.get(name, _words.OTHER)


def _record(key):
    """Prepares and caches the record for calls with this signature."""
    op, dtype, shape, flags, reduce_op, root, tag, count = key
    record = CallRecord()
    record.op = op
    record.dtype = dtype if isinstance(dtype, int) else _dtypes.get(dtype, _words.OTHER)
    record.reduce_op = reduce_op
    record.tensors = count
    record.root = -1
    if root is not None and root >= 0:
        flags |= _words.ROOT
        record.root = root
    if tag is not None:
        flags |= _words.TAG
        record.tag = tag
    if shape is not None:
        numel = 1
        for size in shape:
            numel *= int(size)
        record.numel = numel
        flags |= _words.NUMEL
        if len(shape) <= _words.MAX_DIMS and all(0 <= size < 1 << 32 for size in shape):
            flags |= _words.SHAPE
            record.ndim = len(shape)
            for i, size in enumerate(shape):
                record.dims[i] = size
    record.flags = flags
    if len(_records) >= _MOST_RECORDS:
        _records.clear()
    prepared = _records[key] = Address(record)  # keeps the record alive
    return prepared


def _dtype_and_shape(tensor):
    """Those of the data that is exchanged. A subclass may show others, and its `__torch_function__` is the program's."""
    if type(tensor) is _tensor:
        return tensor.dtype, tensor.shape
    with _without_subclasses():
        return _dtype_of(tensor), _shape_of(tensor)


def _at_place(code, args):
    """The entry of _OPS for an instruction of this c10d function, which always makes the same call."""
    what = _ops.get(int(args.name), _UNKNOWN)
    if what is not None and code.co_name in _COALESCING:
        what = _COALESCED.get(what[0], what)
    return what


def _splits(call, values, args):
    """Records how many elements an all_to_all exchanges with each member; a total alone is divided evenly.

    PyTorch's hooks do not say how a call from C++ divides one tensor: nothing is recorded then.
    """
    if values is not None:
        both = values.get("input_split_sizes"), values.get("output_split_sizes")
        lists = values.get("input_tensor_list"), values.get("output_tensor_list")
    else:
        both = getattr(args, "splits", (_NOT_SAID, _NOT_SAID)) or (None, None)
        lists = None, None
    lists = lists[0] or args.input_tensors, lists[1] or args.output_tensors
    for output, (rows, tensors) in enumerate(zip(both, lists)):
        if len(tensors) != 1:
            sizes = [tensor.numel() for tensor in tensors]
        elif rows is _NOT_SAID:
            continue
        elif rows:
            width = math.prod(tensors[0].shape[1:])
            sizes = [size * width for size in rows]
        else:
            sizes = [tensors[0].numel()]
        _box.lib.splits(call, output, (ctypes.c_int64 * len(sizes))(*sizes), len(sizes))


def _tensors_of(op, values, args):
    """`(first tensor, number of tensors)` of a call on a list."""
    if values is not None:
        for name in _LISTS.get(op, ()):
            tensors = values.get(name)
            if isinstance(tensors, (list, tuple)) and tensors:
                return tensors[0], len(tensors)
        many = values.get("op_list")
        if op == _words.ALL_REDUCE_COALESCED and many:
            return many[0].tensor, len(many)
    tensors = args.output_tensors if op == _words.REDUCE_SCATTER_COALESCED else args.input_tensors
    return (tensors[0] if tensors else None), len(tensors)


def _is_blocking(frame):
    """Whether this frame of c10d sends or receives a message for `send` or `recv`."""
    if frame.f_code.co_name in _BLOCKING:
        return True  # before 2.7 these functions call the group themselves
    outer = frame.f_back
    return outer is not None and outer.f_code.co_name in _BLOCKING and _sites.entry_of(outer.f_code)[3] is not None


def _signature(what, args, frame, values, flags):
    """The key of a call's record. `values` are the locals of the calling c10d function, if there is one."""
    op, where, rooted, _ = what
    count = 1
    if where == _INPUT:
        tensor = values.get("tensor") if values is not None else None
        if tensor is None:
            tensors = args.input_tensors
            tensor = tensors[0] if tensors else None
    elif where == _OUTPUT:
        tensors = args.output_tensors or args.input_tensors
        tensor = tensors[0] if tensors else None
    elif where == _LIST:
        tensor, count = _tensors_of(op, values, args)
    else:
        tensor = None
        count = 0

    reduce_op = 0
    tag = None
    asynchronous = False
    many = values.get("op_list") if values is not None and op != _ALL_TO_ALL else None
    value = values.get("op") if values is not None and not many else None
    if value is not None:
        reduce_op = _reduce_ops.get(id(value)) or _reduce_op(value)
        asynchronous = values.get("async_op")
    elif op in _P2P:
        if values is None:
            tag = getattr(args, "tag", None)
        else:
            tag = values.get("tag")
            asynchronous = not _is_blocking(frame)
    else:
        asynchronous = values.get("async_ops" if many else "async_op") if values is not None else None
        if asynchronous is None:
            asynchronous = args.async_op
        value = many[0].redop if many else None
        if value is None:
            value = getattr(args, "reduce_op", None)
        if value is not None:
            reduce_op = _reduce_ops.get(id(value)) or _reduce_op(value)
    if asynchronous:
        flags |= _ASYNC

    root = args.root if rooted else None
    if tensor is None:
        return (op, 0, None, flags, reduce_op, root, tag, count)
    return (op, *_dtype_and_shape(tensor), flags, reduce_op, root, tag, count)


def make(group):
    """The pre-hook and post-hook of a group. `group` has the attributes `number` and `generation`."""
    generation = group.generation
    number = group.number

    def before(args):
        try:
            if generation != _calls.live:
                return
            try:
                frame = _getframe(1)
            except ValueError:  # no Python on this thread
                frame = None
            issue(args, number, frame)
        except Exception:
            pass

    def after(args):
        try:
            _calls.finish(args.work)
        except Exception:
            pass

    return before, after


def issue(args, number, frame):
    """Records a call on the group `number`. Returns its id. `frame` is the caller; `None`: the thread runs no Python."""
    code = frame.f_code if frame is not None else None
    places = _sites.entry_of(code)[3] if code is not None else None
    values = None
    if places is None:
        site, flags = _locate(frame)
        code = None
        what = _ops.get(int(args.name), _UNKNOWN)
    else:
        site, flags = _locate(frame.f_back)
        try:
            what = places[frame.f_lasti]
        except KeyError:
            what = places[frame.f_lasti] = _at_place(code, args)
    if what is None:
        return None
    op = what[0]
    if what[3] and places is not None:
        values = frame.f_locals
    key = _signature(what, args, frame, values, flags)
    flags = key[3]
    if op in _P2P:  # c10d waits for these in another function
        code = None
    try:
        prepared = _records[key]
    except KeyError:
        prepared = _record(key)
        _init.record_gpu_of(args)

    exception = _exception()
    if exception is not None:
        _exceptions.in_flight(exception)
        exception = None

    # The Works of DDP's reducer are not visible in Python.
    visible = places is not None or not flags & _HIDDEN
    call = _calls.begin(prepared, number, site, code, flags, visible)
    if not visible and op == _ALL_REDUCE:
        _buckets.sent()
    if op == _ALL_TO_ALL:
        _splits(call, values, args)
    _sample_memory()
    return call


def needed():
    """What the extension needs, by name."""
    return {
        "ops": _ops,
        "dtypes": _dtypes,
        "reduce_ops": _reduce_ops,
        "dtype_of": _tensor.dtype,
        "shape_of": _tensor.shape,
        "issue": issue,
    }
