"""Steps, and exceptions that leave DDP's forward."""

import functools
import weakref

from . import _box, _exceptions, _memory, _words

_automatic = True
# The DDP module whose training forwards count; programs with several would count double.
_stepper = None
_grad_enabled = None
_compiling = None


def explicit_step():
    global _automatic
    _automatic = False
    if _box.is_open:
        _box.lib.step()
        _memory.sample()


def _forward_begins(module):
    global _stepper
    if not (_automatic and _box.is_open and module.training and _grad_enabled()):
        return
    stepper = _stepper() if _stepper is not None else None
    if stepper is None:
        _stepper = weakref.ref(module)
    elif stepper is not module:
        return
    _box.lib.step()
    _memory.sample()


def _wrap_forward(original):
    @functools.wraps(original)
    def forward(self, *inputs, **kwargs):
        # The compiler sees nothing but the call that was there before.
        if _compiling():
            return original(self, *inputs, **kwargs)
        try:
            _forward_begins(self)
        except Exception:
            pass
        try:
            return original(self, *inputs, **kwargs)
        except BaseException as error:
            _exceptions.record(_words.LEFT_FORWARD, error)
            raise

    return forward


def patch(module, late):
    global _grad_enabled, _compiling
    import torch

    _grad_enabled = torch.is_grad_enabled
    _compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or (lambda: False)
    ddp = module.DistributedDataParallel
    ddp.forward = _wrap_forward(ddp.forward)


def _reset():
    global _stepper, _automatic
    _stepper = None
    _automatic = True


_box.on_reset.append(_reset)
