"""Patches PyTorch modules directly after they are executed, without importing them.

`torch.distributed/__init__` copies the names of `distributed_c10d` into its own namespace, so the
patches must be in place before the import of the inner module returns.
"""

import atexit
import os
import sys

# Module to patch → module of this package whose `patch(module, late)` patches it.
_TARGETS = {
    "torch.distributed.distributed_c10d": "_c10d._patch",
    "torch.distributed._functional_collectives": "_c10d._functional",
    "torch.nn.parallel.distributed": "_ddp._patch",
    "torch.autograd": "_ddp._backward",
    "torch.utils.data.dataloader": "_ddp._data",
    "torch._dynamo.skipfiles": "_dynamo",
    "torch._dynamo.trace_rules": "_dynamo",
}

_installed = None


def _patch(name, module, late):
    try:
        ours = __import__("ddp_doctor." + _TARGETS[name], fromlist=["patch"])
        ours.patch(module, late)
    except Exception as error:
        try:
            sys.stderr.write("ddp-doctor: %s is not captured: %r\n" % (name, error))
        except Exception:
            pass


class _Finder:
    """A meta-path finder for the modules to be patched. Removes itself after the last one."""

    def __init__(self, waiting):
        self._waiting = waiting

    def find_spec(self, name, path=None, target=None):
        if name not in self._waiting:
            return None
        spec = None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                break
        try:
            self._arrange(name, spec)
        except Exception:  # a loader without settable attributes: the module is not captured
            pass
        return spec

    def _arrange(self, name, spec):
        loader = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module):
            try:
                del loader.exec_module
            except AttributeError:
                pass
            execute(module)
            if name not in self._waiting:
                return  # another finder asked for the spec too, so that it was arranged twice
            self._waiting.discard(name)
            _patch(name, module, False)
            if not self._waiting:
                try:
                    sys.meta_path.remove(self)
                except ValueError:
                    pass

        loader.exec_module = exec_module


def _watch_for_early_end():
    """Records an exception that ends a rank before it has a black box.

    This runs in every interpreter, so further modules are imported only for an exception.
    """
    process = os.getpid()
    previous = sys.excepthook

    def ended(value, at_exit):
        try:
            if isinstance(value, Exception) and os.getpid() == process:
                from ._process import _early

                _early.ended(value, at_exit)
        except Exception:
            pass

    def excepthook(kind, value, traceback):
        ended(value, False)
        previous(kind, value, traceback)

    sys.excepthook = excepthook
    # If another hook has replaced this one, the interpreter still has the exception that it printed.
    atexit.register(lambda: ended(getattr(sys, "last_value", None), True))


def _at_last():
    """Runs after the `atexit` handlers of the program, so that their collectives are recorded."""
    module = sys.modules.get("ddp_doctor._c10d._capture")
    if module is not None:
        try:
            module.unhook_all()
        except Exception:
            pass


def install():
    """Patches modules that are imported already, and the others when they are imported."""
    global _installed
    if _installed is not None:
        return
    atexit.register(_at_last)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _watch_for_early_end()
    waiting = set()
    present = []
    for name in _TARGETS:
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is None or getattr(spec, "_initializing", False):
            waiting.add(name)
        else:
            present.append((name, module))
    _installed = _Finder(waiting)
    if waiting:
        sys.meta_path.insert(0, _installed)
    for name, module in present:
        _patch(name, module, True)
