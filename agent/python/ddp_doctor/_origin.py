"""Which code belongs to the user, by the path of its file."""

import os
import re
import sys

from . import _words

# Kinds of code. The values of the kinds other than USER are or-ed over the frames on the way.
USER = 0
# Code between the user's call and the collective: torch.distributed's own Python, the standard library, this package.
CALL = 1
# Code of PyTorch that communicates without a call of the user's: DDP, the autograd engine, FSDP, …
INTERNAL = _words.HIDDEN
# Code of an installed package.
LIBRARY = 4

_STDLIB = os.path.dirname(os.__file__) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CALL_FILES = (
    "distributed/distributed_c10d.py",
    "distributed/c10d_logger.py",
    "distributed/_functional_collectives.py",
    "distributed/_functional_collectives_impl.py",
    "distributed/collective_utils.py",
    "distributed/device_mesh.py",
    "distributed/nn/",
    "_ops.py",
    "_library/",
    "utils/_contextlib.py",
    "utils/_device.py",
    "overrides.py",
)
# Name of the code of a function that cloudpickle has shipped to this process by value.
SHIPPED = "<dynamic-code>"
# Names of code that the user has typed or shipped. Other names in angle brackets are those of generated code.
_TYPED = ("<stdin>", "<console>", "<string>", "<input>", "<ipython-input-", "<python-input-", "<cell", SHIPPED)
_PACKAGES = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))
_SCRIPTS = ("bin", "Scripts")
_MOST_SCRIPT_BYTES = 4096
# The code of a script that an installer has written: it calls one function of a module.
_ENTRY_POINT = re.compile(r"^\s*from ([\w.]+) import (\w+)", re.MULTILINE)
_CALLS = r"sys\.exit\(\s*%s(\.\w+)*\(\)\s*\)"

_torch = None
_C10D = None
# `(installed package that is the program, script by which a package was started)`; None: not determined yet.
_program = None


def _torch_folder():
    global _torch, _C10D
    if _torch is None:
        module = sys.modules.get("torch")
        file = getattr(module, "__file__", None)
        if file:
            _torch = os.path.dirname(file) + os.sep
            _C10D = _torch + os.path.join("distributed", "distributed_c10d.py")
    return _torch


def of(file):
    """`(kind, whether it is distributed_c10d)` of the code in a file."""
    kind = _kind(file)
    return kind, file == _C10D


def _kind(file):
    folder = _torch_folder()
    if folder and file.startswith(folder):
        inner = file[len(folder) :]
        return CALL if inner.startswith(_CALL_FILES) else INTERNAL
    if file.startswith(_OURS) or file.endswith("typing_extensions.py"):
        return CALL
    if file.startswith("<"):
        if file.startswith("<eval_with_key>"):
            return INTERNAL
        typed = file.startswith(_TYPED) and not (file == "<string>" and _is_spawned())
        return USER if typed else CALL
    if _is_generated(file):
        return INTERNAL
    if folder and file.startswith(os.path.join(os.path.dirname(folder[:-1]), "functorch", "")):
        return INTERNAL
    package = _package(file)
    if package:
        return USER if package == _of_program() else LIBRARY
    if file.startswith(_STDLIB):
        return CALL
    if file == _entry_script():
        return CALL
    return USER


def _is_generated(file):
    """Whether torch.compile has generated this file: CACHE/ab/cab….py."""
    folder, name = os.path.split(file)
    cache, part = os.path.split(folder)
    if part != name[1:3]:
        return False
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return os.path.basename(cache).startswith("torchinductor_") or bool(chosen and cache == os.path.abspath(chosen))


def _is_spawned():
    """Whether multiprocessing started this interpreter with `-c`."""
    return "--multiprocessing-fork" in getattr(sys, "orig_argv", ())


def _package(file):
    """Path of the installed package, or of the single module, that a file belongs to; empty: none."""
    for folder in _PACKAGES:
        at = file.rfind(folder)
        if at >= 0:
            end = file.find(os.sep, at + len(folder))
            return file if end < 0 else file[: end + 1]
    return ""


def _of_program():
    """Path of the installed package that is the program itself; empty: none."""
    return _find_program()[0]


def _entry_script():
    """Path of the script by which an installed package was started; empty: none."""
    return _find_program()[1]


def _find_program():
    global _program
    if _program is None:
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        if not main:
            return "", ""  # an interactive session, or not started yet
        try:
            _program = _read_program(os.path.abspath(main))
        except Exception:
            _program = ("", "")
    return _program


def _read_program(main):
    package = _package(main)
    if package:
        return package, ""
    if os.path.basename(os.path.dirname(main)) not in _SCRIPTS or os.path.getsize(main) > _MOST_SCRIPT_BYTES:
        return "", ""
    with open(main, encoding="utf-8", errors="replace") as script:
        source = script.read()
    for module, function in _ENTRY_POINT.findall(source):
        if re.search(_CALLS % function, source):
            started = sys.modules.get(module)
            return _package(getattr(started, "__file__", None) or ""), main
    return "", ""
