"""The last call of each thread, the Works of asynchronous calls, and the waits for both.

No Work is kept: it is identified by the address of its C++ object.

`libddp_doctor_python.so` does the same as `begin`, `finish`, `interrupted`, `is_inside`, `last_call` and
`wrap_wait`, and replaces them if it can be loaded (`_extension`). Nothing here may raise into the user's program.
"""

import ctypes
import functools
import sys
from _thread import get_ident

from .. import _box, _sites, _words
from .._process import _exceptions, _exit
from .._tracebacks import conceal

_MOST_WORKS = 4096
_SELF_CHECKS = 4
# Maximum number of unawaited calls that are recorded per site.
_MOST_UNAWAITED = 64
# Methods of a Work that wait for it, query it, or return something to wait for.
_QUERIES = (
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
_locate = _sites.locate
_HIDDEN = _words.HIDDEN
_ASYNC = _words.ASYNC

# Thread → its last call: [call, site, code, asynchronous, visible, inside, group]. `code` belongs to the
# c10d function that waits for a synchronous call directly after it; `inside` is true until the call returns.
_last = {}
# Address of a Work's C++ object → (call, site; 0: it may be waited for in ways that are not recorded)
_works = {}
# Sites whose Works were waited for or queried; other sites with their number of unawaited Works.
_awaited = set()
_unawaited = {}
_offset = object.__basicsize__
_address = ctypes.c_void_p.from_address
# Remaining self-checks of the addresses, which are used while no check has failed.
_checks_left = _SELF_CHECKS
_works_known = False
# Thread → address that its next wait should have.
_to_check = {}

# PyTorch's groups with coalesced calls, which are waited for together.
_coalescing = {}

# Generation of the open black box; 0: none.
live = 0

_work = _original_wait = _python_wait = None
issued_at = returned = wait_begin = wait_end = None


def prepare(c10d):
    """Reads PyTorch's constants. `c10d` is torch.distributed.distributed_c10d."""
    global _works_known, _coalescing
    _coalescing = getattr(c10d._world, "pg_coalesce_state", {})
    # A pybind11 instance begins with the address of the C++ object.
    _works_known = getattr(c10d.Work, "__basicsize__", 0) >= _offset + ctypes.sizeof(ctypes.c_void_p)


def _bind():
    global issued_at, returned, wait_begin, wait_end, live
    live = _box.generation
    lib = _box.lib
    issued_at, returned = lib.issued_at, lib.returned
    wait_begin, wait_end = lib.wait_begin, lib.wait_end


def native_wait(extension):
    """The extension's `Work.wait`. Raises if the program has replaced the method since it was wrapped here."""
    if _work.__dict__.get("wait") is not _python_wait:
        raise RuntimeError("the program replaces Work.wait")
    return extension.wrap_wait(_work, _original_wait, _original_wait.__doc__)


def use(extension, wait):
    """Replaces functions of this module by those of the extension; `wait` is the result of `native_wait`."""
    global begin, finish, interrupted, is_inside, last_call
    _work.wait = wait
    begin, finish = extension.begin, extension.finish
    interrupted, is_inside = extension.interrupted, extension.is_inside
    last_call = extension.last_call


def _reset():
    global live
    live = 0
    _last.clear()
    _works.clear()
    _awaited.clear()
    _unawaited.clear()
    _to_check.clear()


_box.on_open.append(_bind)
_box.on_reset.append(_reset)


def begin(prepared, number, site, code, flags, visible):
    """Records a call on the group `number`. Returns its id.

    `code` belongs to the calling c10d function, `flags` are those of the caller, and `visible` is whether the
    call's Work is visible in Python.
    """
    thread = get_ident()
    try:
        last = _last[thread]
    except KeyError:
        last = _last[thread] = [None] * 7
    else:
        if last[5]:  # the previous call raised before its post-hook
            returned(last[0])
    last[0] = call = issued_at(prepared, number, site)
    last[1] = site
    last[2] = code
    last[3] = flags & (_ASYNC | _HIDDEN) if flags & _ASYNC else 0
    last[4] = visible
    last[5] = True
    last[6] = number
    return call


def finish(work):
    """Records that this thread's call returned `work`."""
    thread = get_ident()
    last = _last.get(thread)
    if last is None or not last[5]:
        return
    last[5] = False
    call = last[0]
    returned(call)
    if last[2] is not None and not last[3]:
        if _checks_left:
            expect(work)
    else:
        # Only Works of calls that the user made through c10d are for the user to wait for.
        site = last[1] if last[2] is not None and not last[3] & _HIDDEN else 0
        last[2] = None
        if last[4]:
            remember(work, call, site)


def expect(work):
    """Remembers the Work that c10d should wait for next in this thread."""
    if work is not None:
        _to_check[get_ident()] = _address(id(work) + _offset).value


def remember(work, call, site):
    """Remembers a Work that may be waited for. `site`: of the user's call; 0: not the user's to wait for."""
    if work is None or not _works_known:
        return
    address = _address(id(work) + _offset).value
    gone = _works.pop(address, None)
    if gone is None and len(_works) >= _MOST_WORKS:
        del _works[next(iter(_works))]
    _works[address] = (call, 0 if _coalescing else site)
    if gone is not None:
        # Another Work has its address, so it was destroyed.
        _record_unawaited(gone)


def _record_unawaited(work):
    """Records that this Work was destroyed without a wait, unless waits at its site are known."""
    call, site = work
    if not site or site in _awaited:
        return
    times = _unawaited.get(site, 0)
    if times < _MOST_UNAWAITED:
        _unawaited[site] = times + 1
        _box.lib.unawaited(call, site)


def flush_unawaited():
    """Called when no Work can be waited for any more: the world is left, or the program exits."""
    works = list(_works.values())
    _works.clear()
    if live:
        for work in works:
            _record_unawaited(work)


def _take_awaited(work):
    """Removes a Work that is being waited for. Returns its call."""
    call, site = _works.pop(_address(id(work) + _offset).value, (0, 0))
    if site:
        _awaited.add(site)
    return call


def patch(work):
    """Wraps the methods of the class Work that wait for or query a Work."""
    global _work, _original_wait, _python_wait
    _work, _original_wait = work, work.wait
    _python_wait = work.wait = wrap_wait(work.wait)
    for name in _QUERIES:
        original = getattr(work, name, None)
        if original is not None:
            setattr(work, name, as_method(_wrap_query(original), name))


def as_method(replacement, name):
    """Gives the code of a function the name of the method that it replaces.

    pybind11 calls a function of a class as the override of a virtual method, unless it is called by code of this name.
    With another name, the original of a Python subclass without an override would call the replacement without end.
    """
    replacement.__code__ = replacement.__code__.replace(co_name=name)
    return replacement


def _wrap_query(original):
    @functools.wraps(original)
    def query(self, *args, **kwargs):
        if live and _works_known:
            try:
                _record_query(self)
            except Exception:
                pass
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            conceal(error)
            raise

    return query


def _record_query(work):
    address = _address(id(work) + _offset).value
    call, site = _works.get(address, (0, 0))
    if site:
        _awaited.add(site)
        _works[address] = (call, 0)


def is_inside(number):
    """Whether this thread is inside a recorded call on the group `number`."""
    last = _last.get(get_ident())
    return last is not None and last[5] and last[6] == number


def last_call(_):
    """The id of this thread's last call; 0: it made none."""
    last = _last.get(get_ident())
    return 0 if last is None or last[0] is None else last[0]


def interrupted():
    """Called when this thread's call has raised. Records its return."""
    last = _last.pop(get_ident(), None)
    if last is not None and last[5] and live:
        returned(last[0])


def check(work):
    """Checks that c10d waits for the Work that was expected. Returns whether to check the next one."""
    global _checks_left, _works_known
    expected = _to_check.pop(get_ident(), None)
    if expected is None:
        return _checks_left > 0
    _checks_left -= 1
    if expected != _address(id(work) + _offset).value:
        _works_known = False
        _checks_left = 0
        _works.clear()
    return _checks_left > 0


def waits(work, frame):
    """Records the start of a wait other than that of a synchronous call. Returns the call."""
    call = 0
    if _works_known:
        call = _take_awaited(work)
    wait_begin(call, _locate(frame)[0])
    return call


def wrap_wait(original):
    """Wraps `Work.wait` so that waits are recorded."""

    def wait(self, timeout=_NO_TIMEOUT):
        call = None
        if live:
            try:
                frame = _getframe(1)
                last = _last.get(get_ident())
                if last is not None and last[2] is frame.f_code:
                    last[2] = None
                    call = last[0]
                    if _checks_left:
                        check(self)
                    wait_begin(call, last[1])
                else:
                    call = waits(self, frame)
                frame = None
            except Exception:
                pass
        try:
            if timeout is _NO_TIMEOUT:
                return original(self)
            return original(self, timeout)
        except BaseException as error:
            _exceptions.record(_words.LEFT_COLLECTIVE, error)
            conceal(error)
            raise
        finally:
            if call is not None:
                wait_end(call)

    wait.__doc__ = original.__doc__
    wait.__name__ = "wait"
    wait.__qualname__ = "Work.wait"
    return wait


_exit.on_exit.append(flush_unawaited)
