"""Loads `libddp_doctor_python.so`, which records calls without anything unusual natively.

It lies beside `libddp_doctor.so`. If it cannot be loaded, or with DDP_DOCTOR_NATIVE_HOOKS=0, the Python code
that it replaces records the same.
"""

import ctypes
import os
import sys

from .. import _box, _native, _sites, _words
from .._ddp import _backward, _buckets, _parameters, _patch
from .._process import _exceptions, _memory
from . import _calls, _groups, _hooks, _init, _kernels, _methods

_NAME = "ddp_doctor_python"
_SWITCH = "DDP_DOCTOR_NATIVE_HOOKS"
_WRITABLE_BY_OTHERS = 0o002

# The module; None: calls are recorded in Python.
loaded = None
_tried = False


def hooks_of(group):
    """The native pre-hook and post-hook of a group; `None`: the extension is not used."""
    return None if loaded is None else loaded.hooks_of(group.number, group.generation)


def _bind():
    """Called when a black box was opened."""
    global loaded, _tried
    if not _tried:
        _tried = True
        if os.environ.get(_SWITCH) != "0" and _is_supported():
            try:
                loaded = _load()
            except Exception as error:
                _log(error)
    if loaded is not None:
        loaded.bind(_box.generation)


def _log(error):
    if _box.local_rank() > 0:
        return  # the other ranks of this node have the same files
    try:
        sys.stderr.write(
            "ddp-doctor: the slower Python hooks are used: %s. %s=0 disables this message.\n" % (error, _SWITCH)
        )
    except Exception:
        pass


def _is_supported():
    """Whether the extension can be used with this interpreter. Free-threaded and tracing builds have other objects."""
    return sys.implementation.name == "cpython" and "t" not in sys.abiflags and not hasattr(sys, "getobjects")


def _load():
    library = os.path.realpath(_native.path())
    file = os.path.join(os.path.dirname(library), "lib%s.so" % _NAME)
    _check(file, library)

    from importlib.machinery import ExtensionFileLoader, ModuleSpec

    loader = ExtensionFileLoader(_NAME, file)
    extension = loader.create_module(ModuleSpec(_NAME, loader, origin=file))
    extension.prepare(_needed(), *_addresses())
    # Everything that can fail comes first, since a part of the replacements would not work without the others.
    wait, methods = _calls.native_wait(extension), _methods.native_methods(extension)
    _calls.use(extension, wait)
    _methods.use(methods)
    for module in (_backward, _buckets, _kernels, _patch):
        module.use(extension)
    return extension


def _check(file, library):
    """Raises if a user that could not replace the library could have placed the extension."""
    trusted = 0, os.geteuid(), os.stat(library).st_uid
    # Where others can create entries, the extension may be a link that leads to any library of a trusted user. Of a
    # link that a trusted user made, others must not be able to change what it leads to.
    target = os.path.realpath(file)
    for path in os.path.dirname(file), os.path.dirname(target), target:
        found = os.stat(path)
        if found.st_uid not in trusted:
            raise OSError("%s is not used: %s belongs to user %d" % (file, path, found.st_uid))
        if found.st_mode & _WRITABLE_BY_OTHERS:
            raise OSError("%s is not used: %s is writable by other users" % (file, path))


def _addresses():
    """The functions of the library that record calls and waits."""
    library = _box.lib.library
    names = ("issued_at", "returned", "wait_begin", "wait_end", "forward", "spent")
    return [ctypes.cast(getattr(library, "ddp_doctor_" + name), ctypes.c_void_p).value for name in names]


def _needed():
    import torch

    return {
        **_hooks.needed(),
        **_methods.needed(),
        **_backward.needed(),
        **_buckets.needed(),
        **_parameters.needed(),
        **_patch.needed(),
        "grad_enabled": torch.is_grad_enabled,
        "version_of": torch.Tensor._version,
        "group": _groups.Group,
        "groups": _groups.by_id,
        "codes": _sites.codes,
        "locate": _sites.locate,
        "tensors": (torch.Tensor, torch.nn.Parameter),
        "record_gpu": _init.record_gpu_of,
        "in_flight": _exceptions.in_flight,
        "sample_memory": _memory.sample,
        "remember": _calls.remember,
        "expect": _calls.expect,
        "check": _calls.check,
        "waits": _calls.waits,
        "record_exception": _record_exception,
    }


def _record_exception(error):
    _exceptions.record(_words.LEFT_COLLECTIVE, error)


def _reset():
    if loaded is not None:
        loaded.bind(0)


_box.on_open.append(_bind)
_box.on_reset.append(_reset)
