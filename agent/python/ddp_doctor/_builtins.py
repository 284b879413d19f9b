"""The hot functions of the library as built-in functions, several times faster than ctypes calls."""

import ctypes
import sys

_METH_FASTCALL = 0x80


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class Address(int):
    """Address of a structure, which it keeps alive."""

    def __new__(cls, structure):
        self = super().__new__(cls, ctypes.addressof(structure))
        self._structure = structure
        return self


# Keeps the definitions alive, which built-in functions refer to.
_definitions = []


def of(library):
    """`issued_at`, `returned`, `wait_begin` and `wait_end` of the library; None if not available.

    Arguments and results are integers; a record is passed as its `Address`.
    """
    if sys.implementation.name != "cpython":
        return None
    try:
        api = ctypes.pythonapi
        address = lambda function: ctypes.cast(function, ctypes.c_void_p)  # noqa: E731
        use = library.ddp_doctor_py_use
        use.restype = None
        use(address(api.PyLong_AsUnsignedLongLongMask), address(api.PyLong_FromUnsignedLongLong))
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.c_void_p, ctypes.c_void_p)(
            ("PyCFunction_NewEx", api)
        )
        made = []
        for name in ("issued_at", "returned", "wait_begin", "wait_end"):
            function = address(getattr(library, "ddp_doctor_py_" + name)).value
            definition = _MethodDef(name.encode(), function, _METH_FASTCALL, None)
            _definitions.append(definition)
            made.append(new(ctypes.byref(definition), None, None))
        return made
    except AttributeError:  # the interpreter or the library lacks a function
        return None
