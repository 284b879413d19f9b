"""Replaces functions of torch.distributed.distributed_c10d and of the classes it uses."""

import functools
import os
import sys
from time import sleep

# _exit, _garbage, _threads and _uncaught install their hooks when they are imported.
from .. import _backends, _box, _sites, _words  # noqa: F401
from .._native import Address, CallRecord
from .._process import _exceptions, _exit, _threads, _uncaught  # noqa: F401
from .._tracebacks import conceal
from . import _calls, _capture, _creations, _garbage, _groups, _hooks, _init, _kernels, _methods, _recorder  # noqa: F401

# "interception": calls are intercepted even if PyTorch has hooks.
_CAPTURE = "DDP_DOCTOR_CAPTURE"
# Gloo's threads release the tensors of completed calls, and need the GIL for those that have a Python object,
# which DDP's buckets have through the capture. The destructor of a group waits for its threads without giving up the lock.
# Before a group is destroyed, they get it for this long, in seconds; they need microseconds.
_RELEASE = 0.002

_c10d = None
_getframe = sys._getframe


def _note_in_flight():
    exception = sys.exc_info()[1]
    if exception is not None:
        _exceptions.in_flight(exception)


def _issue(op, group, frame):
    """Records a call for which PyTorch has no hook."""
    if not _box.is_open:
        return None
    _note_in_flight()
    record = CallRecord()
    record.op = op
    record.root = -1
    site, record.flags = _sites.locate(frame)
    return _box.lib.issued_at(Address(record), group, site)


def _return(call):
    if call is not None and _box.is_open:
        _box.lib.returned(call)


def _failed(error):
    if isinstance(error, Exception):
        _calls.interrupted()
    _exceptions.record(_words.LEFT_COLLECTIVE, error)


def _making(op):
    """Wraps a function that creates a group."""

    def wrap(original):
        @functools.wraps(original)
        def make(*args, **kwargs):
            entered = False
            if _box.is_open:
                try:
                    _note_in_flight()
                    parent = _parent(args, kwargs) if op == _words.SPLIT_GROUP else None
                    _creations.enter(op, _sites.site_of(_getframe(1)), parent)
                    entered = True
                except Exception:
                    pass
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                _failed(error)
                conceal(error)
                raise
            finally:
                if entered:
                    _creations.leave()
            try:
                if entered:
                    _capture.register_missing(_c10d)
            except Exception:
                pass
            return result

        return make

    return wrap


def _argument(args, kwargs, index, name, default=None):
    if len(args) > index:
        return args[index]
    return kwargs.get(name, default)


def _default_group():
    return _c10d.GroupMember.WORLD


def _parent(args, kwargs):
    """Global ranks of the parent group, in group order, and its backend."""
    pg = _argument(args, kwargs, 0, "parent_pg") or _default_group()
    ranks = _c10d._world.pg_group_ranks[pg]
    return sorted(ranks, key=ranks.get), _groups.backend_of(_c10d, pg)


def _begin_init(args, kwargs, frame):
    method = _argument(args, kwargs, 1, "init_method")
    world_size = _argument(args, kwargs, 3, "world_size", -1)
    rank = _argument(args, kwargs, 4, "rank", -1)
    store = _argument(args, kwargs, 5, "store")
    if store is None and (method is None or str(method).startswith("env://")):
        from_rank, from_world = _box.identity_from_environment()
        rank = from_rank if rank is None or rank < 0 else rank
        world_size = from_world if world_size is None or world_size < 0 else world_size
    rank = int(-1 if rank is None else rank)
    world_size = int(-1 if world_size is None else world_size)
    if not _box.join(rank, world_size):
        return None
    _groups.world_begins()
    _init.record_gpu(kwargs.get("device_id"))
    try:
        _init.record(rank, world_size, _argument(args, kwargs, 0, "backend"), method, store)
    except Exception:
        pass
    return _issue(_words.INIT_PROCESS_GROUP, 0, frame)


def _end_init():
    if _box.is_open:
        _box.set_identity(_c10d.get_rank(), _c10d.get_world_size())
        _capture.register_missing(_c10d)
        _groups.world_began()


def _wrap_init(original):
    @functools.wraps(original)
    def init_process_group(*args, **kwargs):
        issued = None
        try:
            # A second initialization without a destruction raises and changes nothing.
            if _default_group() is None:
                issued = _begin_init(args, kwargs, _getframe(1))
        except Exception:
            pass
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            # It may have failed after it began to use the device.
            _init.record_gpu(kwargs.get("device_id"))
            _failed(error)
            conceal(error)
            raise
        finally:
            if issued is not None:
                _return(issued)
        try:
            _init.record_gpu(kwargs.get("device_id"))
            _end_init()
        except Exception:
            pass
        return result

    return init_process_group


def _wrap_destroy(original):
    @functools.wraps(original)
    def destroy_process_group(*args, **kwargs):
        issued = None
        left = ()
        try:
            if _box.is_open:
                group = _argument(args, kwargs, 0, "group")
                world = _default_group()
                everything = group is None or group is world
                if world is not None and (everything or _groups.number_of(group)):
                    issued = _issue(
                        _words.DESTROY_PROCESS_GROUP,
                        _groups.number_of(world if everything else group),
                        _getframe(1),
                    )
                    left = _groups.leave(None if everything else group)
                    if everything:
                        _calls.flush_unawaited()
                    sleep(_RELEASE)
        except Exception:
            pass
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            _failed(error)
            conceal(error)
            raise
        finally:
            try:
                if issued is not None:
                    _return(issued)
                _capture.unhook(left)
            except Exception:
                pass
            left = ()

    return destroy_process_group


def _noted(note, begins=None):
    """Wraps a function. Once it has returned, `note` gets its result and its arguments; before, `begins` gets these."""

    def wrap(original):
        @functools.wraps(original)
        def call(*args, **kwargs):
            if begins is not None:
                try:
                    begins(args, kwargs)
                except Exception:
                    pass
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                conceal(error)
                raise
            try:
                note(result, args, kwargs)
            except Exception:
                pass
            return result

        return call

    return wrap


def _note_timeout(_, args, kwargs):
    if _box.is_open:
        group = _argument(args, kwargs, 1, "group")
        _groups.record_timeout(group if group is not None else _default_group())


def _note_name(name, args, kwargs):
    """`_process_group_name` returns the name by which the members of a split find each other."""
    _creations.split_begins(name, _argument(args, kwargs, 0, "ranks"))


def _note_group(_, args, kwargs):
    """`_register_pg_in_world` registers groups that the helper did not create."""
    mapping = _argument(args, kwargs, 5, "rank_mapping")
    if mapping and _box.is_open:
        _capture.register(_c10d, _argument(args, kwargs, 0, "pg"), sorted(mapping, key=mapping.get))


def _making_begins(args, kwargs):
    """`_new_process_group_helper` gets name and ranks of a group before `_world` has them."""
    ranks = _argument(args, kwargs, 2, "global_ranks_in_group")
    tag = _argument(args, kwargs, 8, "pg_tag")
    # The world has its own record; a tag may refer to an existing group.
    if _box.is_open and ranks and not (tag and _c10d._find_pg_by_ranks_and_tag(tag, ranks)):
        backend = _argument(args, kwargs, 3, "backend")
        reconfigures = _argument(args, kwargs, 11, "enable_reconfigure")
        _creations.begins(
            _argument(args, kwargs, 5, "group_name"),
            ranks,
            backend,
            _argument(args, kwargs, 10, "group_desc"),
            not reconfigures and _backends.connects_at_creation(backend),
        )


def _note_made(result, args, kwargs):
    pg = result[0]
    if _box.is_open and isinstance(pg, _c10d.ProcessGroup):
        ranks = _argument(args, kwargs, 2, "global_ranks_in_group") or range(pg.size())
        _capture.register(_c10d, pg, ranks, _argument(args, kwargs, 5, "group_name"))


def _wrap_warning(original):
    """`_warn_not_in_group` is called instead of a call on a group that the rank does not belong to."""

    def _warn_not_in_group(op_name):
        _exceptions.ignored_call(op_name, _getframe(1))
        return original(op_name)

    # Its warning names the file and line of its caller.
    code = original.__code__
    location = dict(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
    _warn_not_in_group.__code__ = _warn_not_in_group.__code__.replace(**location)
    return _warn_not_in_group


def _note_raised():
    try:
        error = sys.exc_info()[1]
        if error is not None:
            _failed(error)
        error = None
    except Exception:
        pass


def _wrap_message(original):
    """`c10d_logger._get_msg_dict` is called only when an exception is raised out of a c10d function."""

    @functools.wraps(original)
    def _get_msg_dict(*args, **kwargs):
        _note_raised()
        return original(*args, **kwargs)

    return _get_msg_dict


def _wrap_debug(original):
    """PyTorch 2.1 has no `_get_msg_dict`, and passes such a dictionary to its logger."""

    @functools.wraps(original)
    def debug(message, *args, stacklevel=1, **kwargs):
        if isinstance(message, dict) and "error" in message:
            _note_raised()
        return original(message, *args, stacklevel=stacklevel + 1, **kwargs)

    return debug


def _replace(module, replacements, late):
    """Replaces functions of a module. `late`: also in modules that have imported them by name."""
    swapped = []
    for name, wrap in replacements:
        original = getattr(module, name, None)
        if original is None:
            continue
        wrapped = wrap(original)
        setattr(module, name, wrapped)
        swapped.append((name, original, wrapped))
    if late:
        for other in list(sys.modules.values()):
            names = getattr(other, "__dict__", None)
            if not isinstance(names, dict):
                continue
            for name, original, wrapped in swapped:
                if names.get(name) is original:
                    names[name] = wrapped


def patch(c10d, late):
    global _c10d
    _c10d = c10d
    _groups.intercepts = not hasattr(c10d.ProcessGroup, "register_pre_hook") or os.environ.get(_CAPTURE) == "interception"
    _hooks.prepare(c10d, _groups.intercepts)
    _recorder.prepare(getattr(sys.modules.get("torch"), "__version__", ""))

    _replace(
        c10d,
        [
            ("init_process_group", _wrap_init),
            ("destroy_process_group", _wrap_destroy),
            ("_abort_process_group", _wrap_destroy),
            ("_new_group_with_tag", _making(_words.NEW_GROUP)),
            ("split_group", _making(_words.SPLIT_GROUP)),
            ("_process_group_name", _noted(_note_name)),
            # Older versions have only `_set_pg_timeout`; in newer ones it calls `set_timeout`.
            ("set_timeout" if hasattr(c10d, "set_timeout") else "_set_pg_timeout", _noted(_note_timeout)),
            ("_new_process_group_helper", _noted(_note_made, _making_begins)),
            ("_register_pg_in_world", _noted(_note_group)),
            ("_warn_not_in_group", _wrap_warning),
        ],
        late,
    )
    _methods.replace_monitored_barrier(c10d.ProcessGroup)
    if _groups.intercepts:
        _methods.replace(c10d.ProcessGroup)
    _calls.patch(c10d.Work)
    logger = sys.modules.get("torch.distributed.c10d_logger")
    if hasattr(logger, "_get_msg_dict"):
        _replace(logger, [("_get_msg_dict", _wrap_message)], False)
    elif hasattr(logger, "_c10d_logger"):
        _replace(logger._c10d_logger, [("debug", _wrap_debug)], False)
    if late and c10d.is_initialized():
        if _box.join(c10d.get_rank(), c10d.get_world_size()):
            _capture.register_missing(c10d)
            _groups.world_began()
