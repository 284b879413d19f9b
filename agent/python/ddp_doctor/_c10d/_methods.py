"""Records calls from Python by replacing methods of `ProcessGroup`: on PyTorch without hooks (before 2.14) all that
communicate, on later versions the one that has no hook.

Each replacement records the call and forwards it. `_kernels` would record the c10d operator behind the method
again, so the method enters the guard that skips Autograd kernels. Backends written in Python run in the calling
thread and would be affected by the guard, so their calls are forwarded without it.
"""

import functools
import sys

from .. import _sites, _words
from .._process import _exceptions
from .._tracebacks import conceal
from . import _calls, _groups, _hooks

_getframe = sys._getframe

# Method → (name in _hooks._OPS, roles of its arguments, in order). The last argument may be the options, or in
# other overloads the reduction operator or the root.
_METHODS = {
    "broadcast": ("BROADCAST", ("input", "options")),
    "allreduce": ("ALLREDUCE", ("input", "options")),
    "allreduce_coalesced": ("ALLREDUCE_COALESCED", ("input", "options")),
    "reduce": ("REDUCE", ("input", "options", "op")),
    "allgather": ("ALLGATHER", ("output", "input", "options")),
    "_allgather_base": ("ALLGATHER_BASE", ("output", "input", "options")),
    "allgather_coalesced": ("ALLGATHER_COALESCED", ("output", "input", "options")),
    "allgather_into_tensor_coalesced": ("ALLGATHER_INTO_TENSOR_COALESCED", ("output", "input", "options")),
    "gather": ("GATHER", ("output", "input", "options")),
    "scatter": ("SCATTER", ("output", "input", "options")),
    "reduce_scatter": ("REDUCE_SCATTER", ("output", "input", "options")),
    "_reduce_scatter_base": ("REDUCE_SCATTER_BASE", ("output", "input", "options")),
    "reduce_scatter_tensor_coalesced": ("REDUCE_SCATTER_TENSOR_COALESCED", ("output", "input", "options")),
    "alltoall_base": ("ALLTOALL_BASE", ("output", "input", "output_splits", "input_splits", "options")),
    "alltoall": ("ALLTOALL", ("output", "input", "options")),
    "send": ("SEND", ("input", "root", "tag")),
    "recv": ("RECV", ("output", "root", "tag")),
    "recv_anysource": ("RECV", ("output", "tag")),
    "barrier": ("BARRIER", ("options",)),
}
# Name of a keyword argument → its possible roles.
_NAMES = {
    "tensors": ("input", "output"),
    "tensor": ("input",),
    "opts": ("options",),
    "op": ("op",),
    "root": ("root",),
    "dstRank": ("root",),
    "srcRank": ("root",),
    "tag": ("tag",),
    "output_split_sizes": ("output_splits",),
    "input_split_sizes": ("input_splits",),
}
# Operations with a reduction operator.
_REDUCTIONS = ("ALLREDUCE", "REDUCE", "REDUCE_SCATTER")

_process_group = None
# (method, original, replacement, number in _hooks._ops, whether it reduces, roles) of the replaced methods
_replaced = []
_tensor = ()
_below_autograd = None


class _Call:
    """The arguments of a method, read on demand, with the attributes of `_hooks.Arguments`."""

    __slots__ = ("name", "_roles", "_args", "_kwargs")

    def __init__(self, name, roles, args, kwargs):
        self.name = name
        self._roles = roles
        self._args = args
        self._kwargs = kwargs

    def _get(self, role):
        for found, value in zip(self._roles, self._args):
            if found == role:
                return value
        for name, value in self._kwargs.items():
            known = _NAMES.get(name) or (name[: name.find("put") + 3],)  # output_tensors, inputTensor, …
            if role in known:
                return value
        return None

    def _tensors(self, role):
        value = self._get(role)
        if value is None:
            return ()
        return (value,) if isinstance(value, _tensor) else value

    @property
    def input_tensors(self):
        return self._tensors("input")

    @property
    def output_tensors(self):
        return self._tensors("output")

    @property
    def root(self):
        root = self._get("root")
        if root is None:
            options = self._get("options")
            root = options if isinstance(options, int) else getattr(options, "rootRank", -1)
        return root

    @property
    def async_op(self):
        return getattr(self._get("options"), "asyncOp", True)

    @property
    def reduce_op(self):
        op = self._get("op")
        if op is None:
            options = self._get("options")
            op = getattr(options, "reduceOp", None)
            if op is None and isinstance(options, (_hooks._reduce_op_type, type(_hooks._reduce_op_type.SUM))):
                op = options
        return op

    @property
    def tag(self):
        return self._get("tag")

    @property
    def splits(self):
        return self._get("input_splits"), self._get("output_splits")


def _replacement(original, name, roles):
    @functools.wraps(original)
    def method(self, *args, **kwargs):
        group = None
        try:
            group = _groups.find(self)
            if group is not None:
                try:
                    frame = _getframe(1)
                except ValueError:  # no Python on this thread
                    frame = None
                _hooks.issue(_Call(name, roles, args, kwargs), group.number, frame)
                frame = None
        except Exception:
            pass
        work = None
        try:
            if group is not None and group.is_native:
                with _below_autograd():
                    work = original(self, *args, **kwargs)
            else:
                work = original(self, *args, **kwargs)
        except BaseException as error:
            conceal(error)
            raise
        finally:
            if group is not None:
                _finish(work)
        return work

    return method


def _finish(work):
    try:
        if work is None:
            _calls.interrupted()
        else:
            _calls.finish(work)
    except Exception:
        pass


def replace(process_group):
    """Replaces the methods of `ProcessGroup`."""
    global _process_group, _tensor, _below_autograd
    import torch

    _process_group = process_group

    _tensor = torch.Tensor
    _below_autograd = torch._C._AutoDispatchBelowAutograd
    for method, (name, roles) in _METHODS.items():
        original = getattr(process_group, method, None)
        if original is not None:
            number = _hooks.numbers[name]
            replacement = _calls.as_method(_replacement(original, number, roles), method)
            setattr(process_group, method, replacement)
            _replaced.append((method, original, replacement, number, name.startswith(_REDUCTIONS), roles))


def replace_monitored_barrier(process_group):
    """Replaces the method without a hook.

    It waits itself, and is recorded like a barrier of c10d: as a call that returns, and a wait for it.
    """
    original = getattr(process_group, "monitored_barrier", None)
    if original is None:
        return

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        call = None
        try:
            group = _groups.find(self)
            if group is not None:
                frame = _getframe(1)
                call = _hooks.issue(_hooks.Arguments(_hooks.UNHOOKED, (), async_op=False), group.number, frame)
                _calls.interrupted()
                _calls.wait_begin(call, _sites.locate(frame)[0])
                frame = None
        except Exception:
            pass
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            _exceptions.record(_words.LEFT_COLLECTIVE, error)
            conceal(error)
            raise
        finally:
            if call is not None:
                _calls.wait_end(call)

    process_group.monitored_barrier = _calls.as_method(method, "monitored_barrier")


def needed():
    """What the extension needs of this module, by name."""
    guard = _below_autograd
    return {
        "described": _described,
        "below_autograd": guard,
        "enter_guard": getattr(guard, "__enter__", None),
        "exit_guard": getattr(guard, "__exit__", None),
    }


def _described(index, *args, **kwargs):
    """The arguments of a replaced method, by its index."""
    _, _, _, number, _, roles = _replaced[index]
    return _Call(number, roles, args, kwargs)


def native_methods(extension):
    """The extension's replacements by name, without methods that the program has replaced since they were wrapped here."""
    methods = {}
    for index, (method, original, replacement, number, reduces, roles) in enumerate(_replaced):
        if _process_group.__dict__.get(method) is replacement:
            at = [roles.index(role) if role in roles else -1 for role in ("input", "output", "options")]
            methods[method] = extension.wrap_method(
                index, _process_group, method, original, original.__doc__, number, *at, reduces
            )
    return methods


def use(methods):
    """Installs the result of `native_methods`."""
    for method, replacement in methods.items():
        setattr(_process_group, method, replacement)
