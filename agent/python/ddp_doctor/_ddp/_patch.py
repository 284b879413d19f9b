"""Steps, and exceptions raised out of DDP's forward.

Each training forward is recorded as a step. Since the steps of ranks are compared, a forward is also marked if
its gradients are only accumulated, if it repeats the previous input, or if no parameter was updated since the
previous forward: several forwards may belong to one step of the optimizer. Inputs and parameters are identified
by weak references, which keep nothing alive.
"""

import functools
import sys
import weakref

from .. import _box, _sites, _words
from .._c10d import _kernels
from .._process import _exceptions, _memory
from .._tracebacks import conceal
from . import _buckets, _data, _parameters

_automatic = True
# The DDP module whose training forwards are counted. With several modules, only the first one counts.
_stepper = None
# Weak reference to the first tensor of the last forward's input.
_last_input = None
# Weak references to the first and the last parameter of that module, and their versions at the last forward.
_watched = ()
_versions = ()
_grad_enabled = None
_inference = None
_tensor = ()


def explicit_step():
    global _automatic
    _automatic = False
    if _box.is_open:
        _box.lib.step()
        _memory.sample()


def _first_tensor(values):
    for value in values:
        if isinstance(value, _tensor):
            return value
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            for inner in value[:8]:
                if isinstance(inner, _tensor):
                    return inner
    return None


def is_repeated(inputs, kwargs):
    """Whether the input is the same as that of the previous forward."""
    global _last_input
    tensor = _first_tensor(inputs)
    if tensor is None:
        tensor = _first_tensor(kwargs.values())
    before = _last_input() if _last_input is not None else None
    _last_input = weakref.ref(tensor) if tensor is not None else None
    return tensor is not None and before is tensor


def update_flags(module):
    """Whether a parameter was updated since the previous forward, as flags. 0: unknown."""
    global _watched, _versions
    watched = [parameter() for parameter in _watched]
    if not watched or any(parameter is None for parameter in watched):
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        _watched = tuple(weakref.ref(parameter) for parameter in trained[:1] + trained[1:][-1:])
        _versions = tuple(parameter()._version for parameter in _watched)
        return 0
    before, _versions = _versions, tuple(parameter._version for parameter in watched)
    return _words.SEES_UPDATES | (_words.UPDATED if before != _versions else 0)


def begins(module, inputs, kwargs):
    """Called before a forward. Never raises an Exception."""
    try:
        if _grad_enabled():
            _parameters.forward_begins(module, sys._getframe(1))
        elif _inference():
            _kernels.see_every_call()  # to record the broadcast of buffers
        _record_forward(module, inputs, kwargs)
    except Exception:
        pass


def _record_forward(module, inputs, kwargs):
    global _stepper
    if not (_automatic and _box.is_open and module.training and _grad_enabled()):
        return
    stepper = _stepper() if _stepper is not None else None
    if stepper is None:
        _stepper = weakref.ref(module)
    elif stepper is not module:
        return
    flags = 0
    try:
        if is_repeated(inputs, kwargs):
            flags |= _words.REPEATED
    except Exception:  # an input of an unknown kind counts as new
        pass
    if not getattr(module, "require_backward_grad_sync", True):
        flags |= _words.UNSYNCHRONISED
    try:
        flags |= update_flags(module)
    except Exception:  # parameters without a version
        pass
    _box.lib.forward(_sites.path_of(sys._getframe(2)), _data.drawn(), flags)
    _memory.sample()


def _wrap_forward(original):
    @functools.wraps(original)
    def forward(self, *inputs, **kwargs):
        # While compiling, only the original call is traced.
        if _compiling():
            return original(self, *inputs, **kwargs)
        begins(self, inputs, kwargs)
        try:
            return original(self, *inputs, **kwargs)
        except BaseException as error:
            try:
                _parameters.forward_raised(self, error)
            except Exception:
                pass
            _exceptions.record(_words.LEFT_FORWARD, error)
            conceal(error)
            raise

    return forward


def _wrap_swap(original):
    @functools.wraps(original)
    def swap_tensors(*args, **kwargs):
        global _last_input, _watched
        _last_input, _watched = None, ()  # swap_tensors rejects tensors with weak references
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            conceal(error)
            raise

    return swap_tensors


def _compiling():
    return False


def _bind():
    """Called when a black box was opened. `torch.compiler` is imported after the module that `patch` changes."""
    global _compiling
    torch = sys.modules["torch"]
    _compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or _compiling


def needed():
    """What the extension needs of this module, by name."""
    return {
        "steps": globals(),
        "inputs": vars(_data),
        "forward": begins,
        "is_repeated": is_repeated,
        "update_flags": update_flags,
        "path_of": _sites.path_of,
    }


def use(extension):
    """Replaces functions of this module by those of the extension."""
    global begins
    begins = extension.forward


def patch(module, late):
    global _grad_enabled, _inference, _tensor
    import torch

    _grad_enabled = torch.is_grad_enabled
    _inference = torch.is_inference_mode_enabled
    _tensor = torch.Tensor
    ddp = module.DistributedDataParallel
    ddp.forward = _wrap_forward(ddp.forward)
    build = getattr(ddp, "_build_params_for_reducer", None)
    if build is not None:
        ddp._build_params_for_reducer = _parameters.wrap_build(build, sys._getframe)
    hook = getattr(ddp, "register_comm_hook", None)
    if hook is not None:
        ddp.register_comm_hook = _buckets.wrap_register_hook(hook)
    swap = getattr(torch.utils, "swap_tensors", None)
    if swap is not None:
        torch.utils.swap_tensors = _wrap_swap(swap)


def _reset():
    global _stepper, _last_input, _automatic, _watched
    _stepper = None
    _last_input = None
    _watched = ()
    _automatic = True


_box.on_open.append(_bind)
_box.on_reset.append(_reset)
