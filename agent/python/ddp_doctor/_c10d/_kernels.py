"""Records calls from C++ on PyTorch without hooks (before 2.14), with kernels for the operators of c10d.

All calls of a process group go through the dispatcher, including those of DDP's reducer, of functional
collectives and of PyTorch's other C++ code. A kernel at the Autograd keys records and forwards them; calls from
Python skip it (`_methods`). These keys are absent in inference mode, and functional collectives of newer
versions skip them as well. A program that uses either also gets kernels at BackendSelect, which all calls pass.
They cost each call 8 µs more; calls that are recorded already are only forwarded.

The kernels are registered with the dispatcher directly, since torch.library accepts only one Python kernel per
operator, and the program may need it.
"""

import sys

from .. import _box, _words
from .._tracebacks import conceal
from . import _calls, _groups, _hooks, _script_objects

_getframe = sys._getframe

# Operator → name in _hooks._OPS.
_OPERATORS = {
    "allreduce_": "ALLREDUCE",
    "allreduce_coalesced_": "ALLREDUCE_COALESCED",
    "broadcast_": "BROADCAST",
    "reduce_": "REDUCE",
    "allgather_": "ALLGATHER",
    "_allgather_base_": "ALLGATHER_BASE",
    "allgather_coalesced_": "ALLGATHER_COALESCED",
    "allgather_into_tensor_coalesced_": "ALLGATHER_INTO_TENSOR_COALESCED",
    "gather_": "GATHER",
    "scatter_": "SCATTER",
    "reduce_scatter_": "REDUCE_SCATTER",
    "_reduce_scatter_base_": "REDUCE_SCATTER_BASE",
    "reduce_scatter_tensor_coalesced_": "REDUCE_SCATTER_TENSOR_COALESCED",
    "alltoall_": "ALLTOALL",
    "alltoall_base_": "ALLTOALL_BASE",
    "send": "SEND",
    "recv_": "RECV",
    "recv_any_source_": "RECV",
    "barrier": "BARRIER",
}
# Names of the operators' arguments.
_INPUTS = ("tensors", "input_tensors", "input_tensor", "input_list", "inputs", "input")
_OUTPUTS = ("tensors", "output_tensors", "output_tensor", "output_lists", "outputs", "output")
_ROOTS = ("root_rank", "dst", "src")
_FUNCTIONAL = "_c10d_functional"
_AUTOGRAD, _EVERY = "Autograd", "BackendSelect"

_C = None
_unbox = None
_tensor = ()
_plain = ()
# The note that calls are not captured was recorded.
_noted = False
# Makes a kernel of the extension; None: it is not used.
_make_native = None
# Dispatch key, or _FUNCTIONAL → library object; its kernels are registered while the object lives.
_registered = {}


def _tensors(value):
    return (value,) if isinstance(value, _tensor) else value or ()


def _is_real(value):
    """Whether a tensor, or a list of tensors, is real and not a fake tensor of a compiler."""
    while isinstance(value, (list, tuple)):
        if not value:
            return True
        value = value[0]
    return type(value) in _plain or not (type(value).__name__ == "FakeTensor" or value.device.type == "meta")


def _keys_of(values, keys):
    """The dispatch keys of all tensors in the arguments of an operator."""
    for value in values:
        if isinstance(value, _tensor):
            keys = keys | _C._dispatch_keys(value)
        elif isinstance(value, (list, tuple)):
            keys = _keys_of(value, keys)
    return keys


def _redispatch(operator):
    """A function that forwards a call of this operator to given keys; None before PyTorch 2.4."""
    return getattr(getattr(operator, "_handle", None), "redispatch_boxed", None)


def _below(key):
    """The keys after this one."""
    below = _C._dispatch_keyset_full_after(_C.DispatchKey.AutogradOther if key == _AUTOGRAD else _C.DispatchKey.BackendSelect)
    # These keys have no kernels for the operators.
    for passed in (_C.DispatchKey.ADInplaceOrView, _C.DispatchKey.BackendSelect, _C.DispatchKey.PythonDispatcher):
        below = below.remove(passed)
    return below


def _passes_on(operator, key):
    """A function that forwards a call to the keys after this one."""
    redispatch = _redispatch(operator)
    if redispatch is None:
        # Five times slower.
        def call_below(args, kwargs):
            try:
                with _C._AutoDispatchBelowAutograd():
                    return operator(*args, **kwargs)
            except BaseException as error:
                conceal(error)
                raise

        return call_below

    below = _below(key)
    included, excluded = _C._dispatch_tls_local_include_set, _C._dispatch_tls_local_exclude_set

    def pass_on(args, kwargs):
        try:
            return redispatch((_keys_of(args, included()) - excluded()) & below, *args, **kwargs)
        except BaseException as error:
            conceal(error)
            raise

    return pass_on


def _kernel(operator, name, key):
    """The kernel of an operator, and whether it is called with the keys of the call as well."""
    positions = {argument.name: position for position, argument in enumerate(operator._schema.arguments)}

    def position(names):
        return next((positions[it] for it in names if it in positions), len(positions))

    group_at = positions["process_group"]
    # A receive has no input.
    inputs_at = position(_INPUTS) if name != _hooks.numbers["RECV"] else len(positions)
    outputs_at, root_at, tag_at = position(_OUTPUTS), position(_ROOTS), position(("tag",))
    splits_at = position(("input_split_sizes",)), position(("output_split_sizes",))

    def argument(args, at, default=None):
        return args[at] if at < len(args) else default

    def begins(frame, *args):
        try:
            group = _groups.find(_unbox(args[group_at]))
        except Exception as error:
            note_uncaptured("calls from C++", error)
            return False
        if group is None or _calls.is_inside(group.number) or not _is_real(args[0]):
            return False
        described = _hooks.Arguments(
            name,
            _tensors(argument(args, inputs_at)),
            _tensors(argument(args, outputs_at)),
            argument(args, root_at, -1),
            tag=argument(args, tag_at),
            splits=tuple(argument(args, at) for at in splits_at),
        )
        _hooks.issue(described, group.number, frame)
        return True

    if _make_native is not None and _redispatch(operator) is not None:
        at = [it if it < len(positions) else -1 for it in (group_at, inputs_at, outputs_at, root_at)]
        return _make_native(name, *at, _redispatch(operator), _below(key), _unbox, begins), True
    pass_on = _passes_on(operator, key)

    def kernel(*args, **kwargs):
        recorded = False
        try:
            try:
                frame = _getframe(1)
            except ValueError:  # no Python on this thread
                frame = None
            recorded = begins(frame, *args)
            frame = None
        except Exception:
            pass
        try:
            return pass_on(args, kwargs)
        except BaseException as error:
            conceal(error)
            raise
        finally:
            if recorded:
                try:
                    _calls.finish(None)
                except Exception:
                    pass

    return kernel, False


def _functional_kernel(operator):
    pass_on = _passes_on(operator, _EVERY)

    def kernel(*args, **kwargs):
        see_every_call()
        try:
            return pass_on(args, kwargs)
        except BaseException as error:
            conceal(error)
            raise

    return kernel, False


def _operators(namespace, names):
    import torch

    for name in names:
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is not None:
            yield name, packet.default


def _register(namespace, key, kernels):
    library = _C._dispatch_library("IMPL", namespace, key, __file__, 0)
    for name, (kernel, with_keys) in kernels:
        if with_keys:
            library.impl(name, key, kernel, True)
        else:
            library.impl(name, key, kernel)
    return library


def _see(key):
    if key in _registered:
        return
    _registered[key] = None  # not tried again after a failure
    kernels = []
    for name, operator in _operators("c10d", _OPERATORS):
        kernels.append((name, _kernel(operator, _hooks.numbers[_OPERATORS[name]], key)))
    _registered[key] = _register("c10d", key, kernels)


def see_every_call():
    """Also records calls that skip the Autograd keys."""
    if _EVERY in _registered or _FUNCTIONAL not in _registered:
        return
    try:
        _see(_EVERY)
    except Exception:
        pass


def see():
    """Starts recording calls from C++. Raises if this PyTorch version does not support it."""
    global _C, _unbox, _tensor, _plain
    if _registered:
        return
    import torch

    _C = torch._C
    _tensor = torch.Tensor
    _plain = (torch.Tensor, torch.nn.Parameter)
    _unbox = getattr(torch._C._distributed_c10d.ProcessGroup, "unbox", _script_objects.group_of)
    taken = any(_C._dispatch_has_kernel_for_dispatch_key("c10d::" + name, "AutogradCPU") for name in _OPERATORS)
    _see(_AUTOGRAD)
    if not hasattr(torch._ops.OpOverload, "redispatch"):
        return  # calls cannot be forwarded from BackendSelect
    prefix = _FUNCTIONAL + "::"
    names = [name[len(prefix) :] for name in _C._dispatch_get_all_op_names() if name.startswith(prefix)]
    names = [name for name in names if "." not in name and name != "wait_tensor"]
    kernels = [(name, _functional_kernel(operator)) for name, operator in _operators(_FUNCTIONAL, names)]
    _registered[_FUNCTIONAL] = _register(_FUNCTIONAL, _EVERY, kernels)
    if taken:  # kernels of the program, which may hide these
        see_every_call()


def use(extension):
    """Lets the extension make the kernels from now on."""
    global _make_native
    _make_native = extension.make_kernel


def note_uncaptured(what, error):
    """Records once that calls are not captured, and why."""
    global _noted
    if not _noted:
        _noted = True
        import torch

        why = "%s: %s" % (type(error).__name__, error)
        _box.note(_words.NO_HOOKS, "with PyTorch %s %s are not captured (%s)" % (torch.__version__, what, why))


def forget():
    """Removes the kernels before the interpreter exits."""
    _registered.clear()


def _reset():
    global _noted
    _noted = False


_box.on_reset.append(_reset)
