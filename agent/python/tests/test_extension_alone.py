"""The extension without PyTorch, so that every version of CPython can run it.

    DDP_DOCTOR_LIBRARY=target/debug/libddp_doctor.so python3.13 agent/python/tests/test_extension_alone.py
"""

import ctypes
import os
import sys
import unittest
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import FunctionType

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ddp_doctor import _origin, _sites, _words  # noqa: E402
from ddp_doctor._native import CallRecord  # noqa: E402
from support import library  # noqa: E402

C10D = "/torch/distributed/distributed_c10d.py"
NAME = "ddp_doctor_python"
GROUP, GENERATION, SITE = 5, 1, 77
SUM, FLOAT = object(), object()
# `MAX_ENTRIES` in memo.rs.
ENTRIES = 4096
ALL_REDUCE, BROADCAST = 3, 2
OPS = {ALL_REDUCE: (_words.ALL_REDUCE, 1, False, True), BROADCAST: (_words.BROADCAST, 1, True, False)}
FUNCTIONS = """
def all_reduce(tensor, op, group=None, async_op=False):
    unbound = async_op
    del unbound
    group(args)
    after(args)
    if not async_op:
        work.wait()
    return work
"""


THROUGH = """
def through(function, depth):
    return through(function, depth - 1) if depth else function()
"""
USERS = """
def one(function, depth):
    return through(function, depth)

def two(function, depth):
    return through(function, depth)
"""


class Tensor:
    dtype = property(lambda self: FLOAT)
    shape = property(lambda self: self._shape)

    def __init__(self, *shape):
        self._shape = shape


class Arguments:
    async_op, work = False, "a Work"

    def __init__(self, name, root, tensor):
        self.name, self.root, self.input_tensors, self.output_tensors = name, root, [tensor], []


class Model:
    __slots__ = ("compared", "finished", "forward", "is_plain", "outside", "reference", "synchronizes")


class Group:
    __slots__ = ("generation", "is_native", "number", "reference")


class Work:
    raised = None

    def wait(self, timeout=None):
        """Waits."""
        if self.raised is not None:
            raise self.raised
        return timeout or "waited"


class Alone(unittest.TestCase):
    """One test, since a process has one extension."""

    def setUp(self):
        self.recorded, self.left, self.waits, self.raised = [], [], [], []
        self.site_of = lambda user: SITE
        # Name of a callback → what it raises.
        self.broken = {}
        _origin._torch, _origin._C10D = "/torch/", C10D
        self.work = Work()
        original = Work.wait
        file = os.path.join(os.path.dirname(library()), "lib%s.so" % NAME)
        loader = ExtensionFileLoader(NAME, file)
        self.extension = loader.create_module(ModuleSpec(NAME, loader, origin=file))
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        self.functions = [
            ctypes.CFUNCTYPE(u64, ctypes.POINTER(CallRecord), u32, u32)(self.issued_at),
            ctypes.CFUNCTYPE(None, u64)(lambda call: self.recorded.append(("returned", call))),
            ctypes.CFUNCTYPE(None, u64, u32)(lambda call, site: self.recorded.append(("wait", call, site))),
            ctypes.CFUNCTYPE(None, u64)(lambda call: self.recorded.append(("end", call))),
            ctypes.CFUNCTYPE(u32, u32, ctypes.c_int64, u32)(lambda *forward: self.recorded.append(forward) or 0),
            ctypes.CFUNCTYPE(None, ctypes.c_int32, u64, u32)(lambda *spent: self.recorded.append(spent)),
        ]
        passed = {
            "codes": _sites.codes,
            "ops": OPS,
            "dtypes": {FLOAT: 1},
            "reduce_ops": {id(SUM): 2},
            "tensors": (Tensor,),
            "dtype_of": Tensor.dtype,
            "shape_of": Tensor.shape,
            "version_of": Tensor.dtype,
            "buckets": {"_hooked": False, "_waits": None, "_queue_callback": self.breakable("queue", lambda callback: None)},
            "queue_callback": None,
            "model": Model,
            "group": Group,
            **{name: {} for name in ("groups", "steps", "inputs", "by_module")},
            **{name: [] for name in ("models", "running")},
        }
        callbacks = {
            "record_exception": self.raised.append,
            "issue": self.issue,
            "locate": _sites.locate,
            "waits": lambda work, frame: self.waits.append(work) or 0,
            "check": lambda work: True,
        }
        unused = "described below_autograd enter_guard exit_guard record_gpu in_flight sample_memory remember expect grad_enabled"
        unused += " forward is_repeated update_flags path_of compare begins_outside check_model backward_raised"
        for name in unused.split():
            callbacks[name] = lambda *args: None
        for name, callback in callbacks.items():
            passed[name] = self.breakable(name, callback)
        self.extension.prepare(passed, *(ctypes.cast(it, ctypes.c_void_p).value for it in self.functions))
        Work.wait = self.extension.wrap_wait(Work, original, original.__doc__)
        self.extension.bind(GENERATION)

    def issued_at(self, record, group, site):
        call = record[0]
        dims = list(call.dims)[: call.ndim]
        said = "issued", call.op, call.dtype, call.reduce_op, call.flags, call.root, call.numel, dims, call.tensors
        self.recorded.append((*said, group, site))
        return len(self.recorded)

    def breakable(self, name, callback):
        def call(*args):
            if name in self.broken:
                raise self.broken[name]
            return callback(*args)

        return call

    def issue(self, args, group, frame):
        """Learns the line, as `_hooks.issue` does, and records nothing."""
        self.left.append(args)
        entry = _sites.entry_of(frame.f_code)
        if entry[3] is not None:
            entry[3][frame.f_lasti] = OPS[args.name]
        user = frame
        while _sites.entry_of(user.f_code)[1]:
            user = user.f_back
        _sites.entry_of(user.f_code)[2][user.f_lasti] = self.site_of(user)

    def test_native_hooks_record_calls_and_waits(self):
        before, after = self.extension.hooks_of(GROUP, GENERATION)
        space = {"after": after, "work": self.work}
        exec(compile(FUNCTIONS, C10D, "exec"), space)
        tensor = Tensor(2, 3)

        def call(args, **others):
            space["args"] = args
            return space["all_reduce"](tensor, SUM, before, **others)

        numel_and_shape = 8 | 16
        for flags, others in ((0, {}), (1, {"async_op": True})):
            for turn in range(3):
                del self.recorded[:], self.left[:]
                call(Arguments(ALL_REDUCE, -1, tensor), **others)
                if turn == 0 and not others:
                    self.assertEqual(len(self.left), 1, "a new line is left to Python")
                    continue
                self.assertEqual(self.left, [])
                issued = ("issued", 1, 1, 2, flags | numel_and_shape, -1, 6, [2, 3], 1, GROUP, SITE)
                waited = [] if others else [("wait", 1, SITE), ("end", 1)]
                self.assertEqual(self.recorded, [issued, ("returned", 1)] + waited)

        self.check_ways(call, tensor)

        # A call without a c10d function, as DDP makes them: the hook itself says what it is.
        for turn in range(2):
            del self.recorded[:], self.left[:]
            before(Arguments(BROADCAST, 1, tensor))
        self.assertEqual(self.recorded[0][:6], ("issued", 6, 1, 0, 32 | numel_and_shape, 1))
        after(Arguments(BROADCAST, 1, tensor))

        # Waits for other Works, and what they return or raise.
        del self.waits[:]
        self.assertEqual((self.work.wait(), self.work.wait(timeout=3)), ("waited", 3))
        self.assertEqual((self.waits, Work.wait.__doc__), ([self.work] * 2, "Waits."))
        self.work.raised = ValueError("lost")
        with self.assertRaises(ValueError):
            self.work.wait()
        self.assertEqual(self.raised, [self.work.raised])

        # An odd tensor, an odd operator: no exception.
        del self.left[:]
        for odd in (Arguments(ALL_REDUCE, -1, object()), Arguments("x", -1, tensor), None, 3):
            self.assertIsNone(before(odd))
            self.assertIsNone(after(odd))
        self.assertEqual(len(self.left), 4)
        count = sys.getrefcount(tensor)
        for _ in range(100):
            call(Arguments(ALL_REDUCE, -1, tensor), async_op=True)
        self.assertLess(abs(sys.getrefcount(tensor) - count), 5)

        self.work.raised = None
        self.check_entries_of_freed_code(before, tensor, space)

        # The exceptions of callbacks: an `Exception` is cleared, and any other is raised.
        ddp = {"before": before}
        exec(compile("def send(args): before(args)", "/torch/nn/parallel/distributed.py", "exec"), ddp)

        def bucket():
            self.extension.backward_begins()
            try:
                ddp["send"](Arguments(ALL_REDUCE, -1, tensor))
            finally:
                self.extension.backward_ended(None, False)

        def direct():
            before(Arguments(BROADCAST, 1, tensor))

        for function in (bucket, direct):
            function()
        for name, function in (
            ("issue", lambda: before(Arguments("x", -1, tensor))),
            ("queue", bucket),
            ("sample_memory", lambda: (self.extension.bind(GENERATION), direct())),
            ("record_gpu", lambda: (self.extension.bind(GENERATION), direct())),
            ("remember", lambda: (direct(), after(Arguments(BROADCAST, 1, tensor)))),
            ("waits", self.work.wait),
        ):
            for error in (ValueError("cleared"), KeyboardInterrupt(name), SystemExit(3)):
                with self.subTest(name, error=error):
                    self.broken = {name: error}
                    del self.recorded[:]
                    if isinstance(error, Exception):
                        function()
                    else:
                        with self.assertRaises(type(error)) as caught:
                            function()
                        self.assertIs(caught.exception, error)
                    self.broken = {}
                    self.assertEqual(self.work.wait(), "waited", "nothing is raised later")

    def check_ways(self, call, tensor):
        """One instruction of c10d, reached from two lines by ways of several lengths."""
        space = {}
        exec(compile(THROUGH, "/torch/nn/through.py", "exec"), space)
        exec(USERS, space)
        self.site_of = lambda user: user.f_code.co_firstlineno
        makes = "lambda call, args: lambda: call(args)"
        inner = eval(compile(makes, "/torch/nn/inner.py", "eval"))(call, Arguments(ALL_REDUCE, -1, tensor))
        call.__code__ = call.__code__.replace(co_filename="/torch/nn/inner.py")
        for turn in range(3):
            for depth in (0, 1, 9):
                for user in (space["one"], space["two"], space["one"]):
                    del self.recorded[:], self.left[:]
                    user(inner, depth)
                    if turn:
                        self.assertEqual(self.left, [])
                        self.assertEqual(self.recorded[0][-1], user.__code__.co_firstlineno)
        self.site_of = lambda user: SITE

    def check_entries_of_freed_code(self, before, tensor, space):
        functions = {}
        exec("".join("def f%d(before, args): before(args)\n" % i for i in range(ENTRIES // 2 - 1)), functions)
        functions.pop("__builtins__")
        template = space["all_reduce"].__code__
        names = tuple("asynchronous" if name == "async_op" else name for name in template.co_varnames)
        space["args"] = Arguments(ALL_REDUCE, -1, tensor)
        c10d = FunctionType(template.replace(co_varnames=names), space, "all_reduce", (None, False))

        def innermost():
            c10d(tensor, SUM, before, True)

        def user():  # the way to a call is known by more than the user's line
            innermost()

        def fill():  # with two entries for each function
            for function in functions.values():
                function(before, Arguments(BROADCAST, 1, tensor))

        for _ in range(3):
            user()
        fill()
        user()
        self.extension.bind(GENERATION)
        fill()
        user()  # there is no room for the entries of `user`, so those of `c10d` are removed
        address = id(c10d.__code__)
        del c10d, _sites.codes[address]
        codes = [template.replace()]
        while id(codes[-1]) != address:
            self.assertLess(len(codes), 1000, "the address is not used again")
            codes.append(template.replace())
        c10d = FunctionType(codes[-1], space, "all_reduce", (None, False))
        user()
        del self.left[:], self.recorded[:]
        user()
        self.assertEqual(self.left, [])
        self.assertEqual(self.recorded[0][4] & 1, 1, "the new code has another argument, which is True")


if __name__ == "__main__":
    unittest.main()
