"""Records collectives, messages and waits.

A call arrives here from PyTorch's own hooks (2.14 and later) or from the interception of earlier versions
(`_methods`, `_kernels`). Both describe it with the attributes of PyTorch's `PreHookArgs`; `Arguments` is
that description for a call that was intercepted. Everything after that is common.

This code runs in every collective of the training, so the straight path through `issue` is short: a walk
to the user's frame, the first tensor's shape and type, one look-up for a record prepared earlier,
one call into the library. No tensor and no Work outlives the call, and only the first tensor of a list
is touched (reading a hook's list creates a Python object for each of them).

Nothing in here may raise: an exception would surface in the user's collective.
"""

import ctypes
import functools
import sys
from _thread import get_ident

from . import _box, _buckets, _exceptions, _init, _sites, _words
from ._native import NO_CALL, CallRecord

HOOK_ID = 0x44445044  # "DDPD"

# Where the tensor stands that sizes are compared by.
_NONE, _INPUT, _OUTPUT, _LIST = range(4)

# HookOpName → (op, where, has a root or peer, has more in the caller's locals)
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
    # Recorded where it is called.
    "SPLIT": None,
}
# Instead of True: the arguments `tensor`, `op` and `async_op` of the function of c10d say it all.
_ARGUMENTS = "arguments"
# Names of c10d's locals that hold the list of tensors of a call, by op.
_LISTS = {
    _words.ALL_TO_ALL: ("input_tensor_list",),
    _words.ALL_REDUCE_COALESCED: ("tensors",),
    _words.ALL_GATHER_COALESCED: ("input_tensor_list", "inputs"),
    _words.REDUCE_SCATTER_COALESCED: ("outputs",),
}
_UNKNOWN = (_words.OTHER, _INPUT, True, False)
_MOST_RECORDS = 4096
_MOST_WORKS = 4096
_SELF_CHECKS = 4
# Unawaited calls of one site that are recorded.
_MOST_UNAWAITED = 64
# What of a Work waits for it, says how it fares, or gives something to wait for.
_LOOKS = (
    "get_future",
    "get_future_result",
    "is_completed",
    "is_success",
    "exception",
    "result",
    "synchronize",
    "block_current_stream",
    "boxed",
)
_NO_TIMEOUT = object()

_getframe = sys._getframe
# The exception being handled; Python 3.11 has it without the tuple.
_exception = getattr(sys, "exception", None) or (lambda: sys.exc_info()[1])
_codes = _sites.codes
_learn = _sites.learn
_locate = _sites.locate
_HIDDEN = _words.HIDDEN
_ASYNC = _words.ASYNC
_ALL_REDUCE = _words.ALL_REDUCE
_ALL_TO_ALL = _words.ALL_TO_ALL
_P2P = (_words.SEND, _words.RECV)

# Number of an operation → its entry in _OPS: PyTorch's HookOpName, or the position in _OPS where there is none.
_ops = {}
# Name of an operation → its number.
numbers = {}
# torch.dtype → number
_dtypes = {}
# id(ReduceOp.SUM) → number; the values are attributes of a class that lives as long as PyTorch.
_reduce_ops = {}
_reduce_op_type = ()
# Signature → (record, reference to it)
_records = {}
# Thread → its last call: [call, site, code, asynchronous, visible, inside, group]. `code` is that of the
# function of c10d that waits for a synchronous call right after it, `inside` is true until the call returns.
_last = {}
# Address of a Work's C++ object → (call, site; 0: it may be waited for in ways that are not seen)
_works = {}
# Sites whose Works were waited for or looked at, and how many of others were not.
_awaited = set()
_unawaited = {}
_offset = object.__basicsize__
_address = ctypes.c_void_p.from_address
# Checks left; the addresses are trusted while none has failed.
_checks_left = _SELF_CHECKS
_works_known = False
# Threads whose next wait is to be checked against an address.
_to_check = {}

# PyTorch's groups whose calls are gathered now, to be waited for together.
_gathered = {}

# Generation of the black box that is open; 0: none is.
_live = 0

issued_at = returned = wait_begin = wait_end = None


def prepare(c10d, intercepts):
    """Learns PyTorch's numbers. `c10d` is torch.distributed.distributed_c10d."""
    global _reduce_op_type, _works_known, _gathered
    import torch

    bindings = torch._C._distributed_c10d
    names = getattr(bindings, "HookOpName", None)
    for position, (name, entry) in enumerate(_OPS.items()):
        value = getattr(names, name, None) if names is not None else position
        if value is not None:
            if intercepts and entry is not None:  # options say whether a call is asynchronous from 2.7 on
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
    _gathered = getattr(c10d._world, "pg_coalesce_state", {})
    work = c10d.Work
    # An instance of pybind11's begins with the address of the C++ object.
    _works_known = getattr(work, "__basicsize__", 0) >= _offset + ctypes.sizeof(ctypes.c_void_p)


class Arguments:
    """An intercepted call, described like PyTorch's `PreHookArgs`, with what those lack."""

    __slots__ = ("name", "async_op", "input_tensors", "output_tensors", "root", "reduce_op", "tag", "splits")

    def __init__(self, name, inputs, outputs=(), root=-1, async_op=True, reduce_op=None, tag=None, splits=()):
        self.name = name
        self.input_tensors = inputs
        self.output_tensors = outputs
        self.root = root
        self.async_op = async_op
        self.reduce_op = reduce_op
        self.tag = tag
        # Sizes of the input's and the output's parts.
        self.splits = splits


def _bind():
    global issued_at, returned, wait_begin, wait_end, _live
    _live = _box.generation
    lib = _box.lib
    issued_at, returned = lib.issued_at, lib.returned
    wait_begin, wait_end = lib.wait_begin, lib.wait_end


def _reset():
    global _live
    _live = 0
    _last.clear()
    _works.clear()
    _awaited.clear()
    _unawaited.clear()
    _to_check.clear()


_box.on_open.append(_bind)
_box.on_reset.append(_reset)


def _reduce_op(value):
    """Number of a reduction operator that is not one of the plain values."""
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
    """A record for calls of this signature."""
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
    prepared = _records[key] = _box.lib.reference(record)  # keeps the record
    return prepared


def _at_place(code, args):
    """The entry of _OPS for a place in this function of c10d. A place always makes the same call."""
    what = _ops.get(int(args.name), _UNKNOWN)
    if what is not None and what[1] == _INPUT and what[3] and what[0] not in _P2P:
        arguments = code.co_varnames[: code.co_argcount]
        if all(name in arguments for name in ("tensor", "op", "async_op")):
            return what[:3] + (_ARGUMENTS,)
    return what


def _splits(call, values, args):
    if values is not None:
        both = values.get("input_split_sizes"), values.get("output_split_sizes")
    else:
        both = getattr(args, "splits", ())
    for output, sizes in enumerate(both):
        if sizes:
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


def _signature(what, args, frame, values, flags):
    """What a call is recorded with: the key of its record. `values` are c10d's locals, if it stands there."""
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
            # send() and recv() wait for what isend() and irecv() return; they call the group themselves before 2.7.
            outer = frame.f_back
            names = frame.f_code.co_name, outer.f_code.co_name if outer is not None else ""
            asynchronous = "send" not in names and "recv" not in names
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
    return (op, tensor.dtype, tensor.shape, flags, reduce_op, root, tag, count)


def make(group):
    """The two hooks of a group. `group` has the attributes `number` and `generation`."""

    generation = group.generation
    number = group.number

    def before(args):
        try:
            if generation != _live:
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
            finish(args.work)
        except Exception:
            pass

    return before, after


def issue(args, number, frame):
    """Records a call that begins, on the group of that number. `frame` made it; `None`: there is no Python there."""
    thread = get_ident()
    if frame is None:
        places = None
    else:
        code = frame.f_code
        try:
            places = _codes[id(code)][3]
        except KeyError:
            places = _learn(code)[3]

    values = None
    if places is None:
        site, flags = _locate(frame)
        code = None
        what = _ops.get(int(args.name), _UNKNOWN)
    else:
        # `_locate`, as far as it was here before: the call costs as much as passing a frame.
        flags = 0
        user = frame.f_back
        try:
            entry = _codes[id(user.f_code)]
            while entry[1]:
                flags |= entry[1]
                user = user.f_back
                entry = _codes[id(user.f_code)]
            site = entry[2][user.f_lasti]
            flags &= _HIDDEN
        except (KeyError, AttributeError):  # something new, or no user
            site, flags = _locate(frame.f_back)
        try:
            what = places[frame.f_lasti]
        except KeyError:
            what = places[frame.f_lasti] = _at_place(code, args)
    if what is None:
        return
    op, _, rooted, more = what
    if more and places is not None:
        values = frame.f_locals

    if more is _ARGUMENTS:
        tensor = values["tensor"]
        value = values["op"]
        if values["async_op"]:
            flags |= _ASYNC
        reduce_op = _reduce_ops.get(id(value)) or _reduce_op(value)
        key = (op, tensor.dtype, tensor.shape, flags, reduce_op, args.root if rooted else None, None, 1)
        tensor = None
    else:
        key = _signature(what, args, frame, values, flags)
        flags = key[3]
        if op in _P2P:  # c10d waits for those from another function
            code = None
    try:
        prepared = _records[key]
    except KeyError:
        prepared = _record(key)
        _init.look(args)

    exception = _exception()
    if exception is not None:
        _exceptions.in_flight(exception)
        exception = None

    try:
        last = _last[thread]
    except KeyError:
        last = _last[thread] = [None] * 7
    else:
        if last[5]:  # the call before raised before its second hook
            returned(last[0])
    last[0] = call = issued_at(prepared, number, site)
    last[1] = site
    last[2] = code
    last[3] = flags & (_ASYNC | _HIDDEN) if flags & _ASYNC else 0
    last[4] = places is not None or not flags & _HIDDEN  # the reducer's own Works are never seen by Python
    last[5] = True
    last[6] = number
    if not last[4] and op == _ALL_REDUCE:
        _buckets.sent(thread)
    if op == _ALL_TO_ALL:
        _splits(call, values, args)


def finish(work):
    """Records that this thread's call returned. `work` is what it returned."""
    thread = get_ident()
    last = _last.get(thread)
    if last is None or not last[5]:
        return
    last[5] = False
    call = last[0]
    returned(call)
    if last[2] is not None and not last[3]:
        if _checks_left:
            if work is not None:
                _to_check[thread] = _address(id(work) + _offset).value
    else:
        # Only what the user asked c10d for is the user's to wait for.
        site = last[1] if last[2] is not None and not last[3] & _HIDDEN else 0
        last[2] = None
        if last[4]:
            _remember(work, call, site)


def _remember(work, call, site):
    if work is None or not _works_known:
        return
    address = _address(id(work) + _offset).value
    gone = _works.pop(address, None)
    if gone is None and len(_works) >= _MOST_WORKS:
        del _works[next(iter(_works))]
    _works[address] = (call, 0 if _gathered else site)
    if gone is not None:
        # Another Work is where that one was.
        _is_gone(gone)


def _is_gone(work):
    """Nobody can wait for this Work any more."""
    call, site = work
    if not site or site in _awaited:
        return
    times = _unawaited.get(site, 0)
    if times < _MOST_UNAWAITED:
        _unawaited[site] = times + 1
        _box.lib.unawaited(call, site)


def all_gone():
    """Nobody waits for any Work any more: the world is left, or the program ends."""
    works = list(_works.values())
    _works.clear()
    if _live:
        for work in works:
            _is_gone(work)


def _look(work):
    """A Work was waited for, or looked at. Returns its call."""
    call, site = _works.pop(_address(id(work) + _offset).value, (NO_CALL, 0))
    if site:
        _awaited.add(site)
    return call


def wrap_looks(work):
    """The methods by which one comes to know of a Work without `wait`."""
    for name in _LOOKS:
        original = getattr(work, name, None)
        if original is not None:
            setattr(work, name, _wrap_look(original))


def _wrap_look(original):
    @functools.wraps(original)
    def look(self, *args, **kwargs):
        if _live and _works_known:
            try:
                _looked_at(self)
            except Exception:
                pass
        return original(self, *args, **kwargs)

    return look


def _looked_at(work):
    address = _address(id(work) + _offset).value
    call, site = _works.get(address, (NO_CALL, 0))
    if site:
        _awaited.add(site)
        _works[address] = (call, 0)


def is_inside(number):
    """Whether this thread is inside of a recorded call on the group of that number."""
    last = _last.get(get_ident())
    return last is not None and last[5] and last[6] == number


def interrupted():
    """This thread's call raised: it is not inside any more."""
    last = _last.pop(get_ident(), None)
    if last is not None and last[5] and _live:
        returned(last[0])


def _check(thread, work):
    """Whether the address seen by the hook is that of the Work which c10d waits for."""
    global _checks_left, _works_known
    expected = _to_check.pop(thread, None)
    if expected is None:
        return
    _checks_left -= 1
    if expected != _address(id(work) + _offset).value:
        _works_known = False
        _checks_left = 0
        _works.clear()


def _waits(work, frame):
    """Begins the wait for a Work that came from elsewhere; returns its call."""
    call = NO_CALL
    if _works_known:
        call = _look(work)
    wait_begin(call, _locate(frame)[0])
    return call


def wrap_wait(original):
    """`Work.wait`, recorded."""

    def wait(self, timeout=_NO_TIMEOUT):
        call = None
        if _live:
            try:
                frame = _getframe(1)
                last = _last.get(get_ident())
                if last is not None and last[2] is frame.f_code:
                    last[2] = None
                    call = last[0]
                    if _checks_left:
                        _check(get_ident(), self)
                    wait_begin(call, last[1])
                else:
                    call = _waits(self, frame)
                frame = None
            except Exception:
                pass
        try:
            if timeout is _NO_TIMEOUT:
                return original(self)
            return original(self, timeout)
        except BaseException as error:
            _exceptions.record(_words.LEFT_COLLECTIVE, error)
            raise
        finally:
            if call is not None:
                wait_end(call)

    wait.__doc__ = original.__doc__
    wait.__name__ = "wait"
    wait.__qualname__ = "Work.wait"
    return wait
