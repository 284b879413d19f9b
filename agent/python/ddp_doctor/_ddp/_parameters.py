"""Parameters of DDP's models: their layout when a model is wrapped, and those without a gradient.

After each backward, DDP's reducer can be queried whether it has all gradients, at a cost that does not
depend on the number of parameters. Otherwise a rank whose backward left out a parameter would continue
unnoticed while its peers wait.

Only names are kept, not parameters. The reducer's answer is an error message that this module parses;
if a PyTorch version changes the message, less is recorded.
"""

import ctypes
import re
import sys
import time
import weakref

from .. import _box, _sites, _words
from .._c10d import _groups, _init
from .._native import ParameterList, text
from .._tracebacks import conceal
from . import _replicas, _uses

# Maximum number of models per process that are monitored.
_MOST_MODELS = 64
# Last line of a list of parameters of which there may be more than the total.
_AND_MORE = "..."
# Maximum size of a text in the black box, and number of texts for the layout of a model.
_MOST_BYTES = 4096
_MOST_PIECES = 16
# After so many times that a missing gradient came in a later backward, this is considered intended (for
# example two losses of one forward), and the model is not checked any more.
_MOST_LATER = 8
# Maximum number of parts of a model for which the lines that use them are recorded.
_MOST_RECORDED_PARTS = 8

# Search for unused parameters: DDP logs its result in the first ten iterations, and in every hundredth. It
# is queried in the first iterations and then at intervals; after _ITERATIONS it is recorded as needless.
_FIRST_ITERATIONS = 10
_EVERY = 50
_ITERATIONS = 200
_KEPT_TIMES = 15
# The module of DistributedDataParallel, and the mark of its method that times searches.
_DDP = "torch.nn.parallel.distributed"
_TIMED = "_ddp_doctor_timed"

# Number of consecutive steps with gradients from outside DDP's forward after which this is recorded, and of
# those with gradients of parameters that DDP does not know.
_MOST_OUTSIDE = 3
_MOST_THAWED = 3
# Maximum number of frozen parameters that are checked after a backward.
_CHECKED = 4

_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_STATIC = "not compatible with static_graph"
_READY_TWICE = "Expected to mark a variable ready only once"
_CHANGED = "Your training graph has changed in this iteration"
_INDICES = re.compile(r"indices which did not receive grad for rank \d+: *([\d, ]+)")
_INDEX = re.compile(r"Parameter at index (\d+)")

_models = []
# id(module) → its model, for live modules.
_by_module = {}
# Group → number of its models so far.
_counts = {}
# One entry per running backward, including nested ones.
_running = []


class Model:
    __slots__ = (
        "reference",
        "group",
        "number",
        "lines",
        "without",
        "later",
        "finished",
        "forward",
        "synchronizes",
        "is_outside",
        "outside",
        "frozen",
        "checked",
        "thawed",
        "search",
        "recorded_parts",
        "described",
        "compared",
        "is_plain",
    )

    def __init__(self, module, group, number, lines):
        self.reference = weakref.ref(module)
        self.group = group
        self.number = number
        self.lines = lines
        # Indices of the parameters without a gradient after the last backward; None: none is missing.
        self.without = None
        self.later = 0
        # Number of backwards after which all gradients were there and averaged.
        self.finished = 0
        # Whether its forward ran since the last backward, and whether gradients are averaged after it.
        self.forward = False
        self.synchronizes = False
        # Before the running backward there was no forward, and the first parameter had no gradient.
        self.is_outside = False
        # Number of consecutive such backwards that produced a gradient, since the last forward.
        self.outside = 0
        # Names of the parameters that required no gradient when the model was wrapped, unless DDP ignores them.
        self.frozen = _frozen(module)
        # Number of these that were checked for a gradient, and of consecutive backwards with one.
        self.checked = 0
        self.thawed = 0
        # State of the search for unused parameters; None: disabled, or its result is known.
        self.search = Search() if module.find_unused_parameters else None
        # Parts without gradients for which the lines that use them were recorded.
        self.recorded_parts = set()
        # Number of parameters whose layout was recorded.
        self.described = 0
        # `finished` when its parameters were last read; None: its replicas are not compared.
        self.compared = -1 if _replicas.is_enabled and module.process_group.size() > 1 else None
        self.update()

    def update(self):
        """Called when a condition may have changed under which more than the reducer's answer matters after a backward."""
        self.is_plain = not self.frozen and self.search is None and self.without is None and self.later < _MOST_LATER


def _frozen(module):
    ignored = getattr(module, "parameters_to_ignore", ())
    named = module.module.named_parameters()
    return [name for name, parameter in named if not parameter.requires_grad and name not in ignored]


class Search:
    __slots__ = ("backwards", "times")

    def __init__(self):
        self.backwards = 0
        # Durations of the last searches in nanoseconds.
        self.times = []


def _record_fact(model, fact, total, lines=(), first=0, site=0):
    data = "".join(line + "\n" for line in lines)
    record = ParameterList(
        ctypes.sizeof(ParameterList), fact, model.group, model.number, first, total, text(data, _MOST_BYTES), site
    )
    _box.lib.parameters(ctypes.byref(record))


def _line(name, parameter):
    dtype = str(parameter.dtype).rsplit(".", 1)[-1]
    shape = ",".join(str(int(size)) for size in parameter.shape) or "-"
    return "%s %s %s" % (dtype, shape, name.replace("\n", " "))


def _describe(module, parameters):
    """One line per parameter, in the order of the reducer."""
    names = {}
    for name, parameter in module.named_parameters():
        names[id(parameter)] = name
    return [_line(names.get(id(parameter), "?"), parameter) for parameter in parameters]


def _cut(lines, most):
    """The first lines that fit into `most` bytes."""
    taken = room = 0
    for line in lines:
        room += len(line.encode("utf-8", "replace")) + 1
        if room > most:
            break
        taken += 1
    return lines[:taken]


def _wrapped(module, parameters, frame):
    """Records the layout of a model before DDP compares it with those of the peers."""
    group = _groups.number_of(module.process_group)
    if not group:
        return
    if parameters:
        _init.record_gpu(parameters[0].device)
    _models[:] = [model for model in _models if model.reference() is not None]
    _by_module.clear()
    _by_module.update((id(model.reference()), model) for model in _models)
    number = _counts[group] = _counts.get(group, 0) + 1
    lines = _describe(module.module, parameters)
    model = Model(module, group, number, lines)
    if model.search is not None:
        _time_searches(sys.modules[_DDP].DistributedDataParallel)
    site = _sites.site_of(frame)
    first = 0
    for _ in range(_MOST_PIECES):
        piece = _cut(lines[first : first + _MOST_BYTES], _MOST_BYTES)
        _record_fact(model, _words.LAYOUT, len(lines), piece, first, site)
        first += len(piece)
        if not piece or first >= len(lines):
            break
    model.described = first
    if len(_models) < _MOST_MODELS:
        _models.append(model)
        _by_module[id(module)] = model


def wrap_build(original, getframe):
    """Wraps `DistributedDataParallel._build_params_for_reducer` to record its result."""

    def _build_params_for_reducer(self, *args, **kwargs):
        try:
            built = original(self, *args, **kwargs)
        except BaseException as error:
            conceal(error)
            raise
        if _box.is_open:
            try:
                _wrapped(self, built[0], getframe(1))
            except Exception:
                pass
        return built

    _build_params_for_reducer.__doc__ = original.__doc__
    return _build_params_for_reducer


def _time_searches(ddp):
    """Wraps `DistributedDataParallel._post_forward` to time the search for unused parameters in it, once one is enabled."""
    original = getattr(ddp, "_post_forward", None)
    if original is None or hasattr(original, _TIMED):
        return

    def _post_forward(self, *args, **kwargs):
        model = _by_module.get(id(self))
        begin = time.perf_counter_ns()
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            conceal(error)
            raise
        search = model.search if model is not None else None
        if search is not None:
            search.times.append(time.perf_counter_ns() - begin)
            del search.times[:-_KEPT_TIMES]
        return result

    setattr(_post_forward, _TIMED, True)
    ddp._post_forward = _post_forward


def _searched(model, module):
    """Called after a backward with a search. Queries DDP at intervals for the results of its searches."""
    search = model.search
    search.backwards += 1
    if search.backwards > _FIRST_ITERATIONS and search.backwards % _EVERY:
        return
    logged = module._get_ddp_logging_data()
    unused = logged.get("unused_parameter_size")
    if unused or module.static_graph:
        model.search = None
    elif unused is not None and logged.get("iteration", 0) >= _ITERATIONS:
        model.search = None
        times = sorted(search.times)
        micros = times[len(times) // 2] // 1000 if times else 0
        _record_fact(model, _words.NEVER_UNUSED, len(model.lines), (), min(micros, 2**32 - 1))


def forward_begins(module, frame):
    """Called before a forward of DDP after which there may be a backward. `frame` calls it."""
    model = _by_module.get(id(module))
    if model is not None:
        model.forward = True
        model.outside = 0
        model.synchronizes = module.require_backward_grad_sync
        if model.compared is not None and model.compared != model.finished and _box.is_open:
            compare(model, module, frame)


def compare(model, module, frame):
    """Called at the first forward, and at the first after each synchronized backward."""
    model.compared = model.finished
    try:
        _replicas.record(model, module, frame)
    except Exception:  # a model or a parameter of an unknown kind
        model.compared = None


def averages_otherwise(module):
    """Called when the program replaces the averaging of gradients: replicas may then differ."""
    model = _by_module.get(id(module))
    if model is not None:
        model.compared = None


def _is_without(module):
    """Whether the first parameter that requires a gradient has none; false if there is no such parameter.

    Checks a single parameter, and is called only for models without a forward of DDP.
    """
    for parameter in module.module.parameters():
        if parameter.requires_grad:
            return parameter.grad is None
    return False


def backward_begins():
    _running.append(None)
    if len(_running) > 1:
        return
    for model in _models:
        if not model.forward and model.outside < _MOST_OUTSIDE:
            begins_outside(model)


def begins_outside(model):
    """Called before a backward without a forward of this model since the last one."""
    module = model.reference()
    model.is_outside = module is not None and _is_without(module)


def backward_ended(frame):
    """Called after a backward. Queries the reducers after the outermost one."""
    _running.pop()
    if _running or not _models or not _box.is_open:
        return
    for model in _models:
        module = model.reference()
        if module is not None:
            check(model, module, frame)


def check(model, module, frame):
    """Called after an outermost backward, for each model."""
    _check(model, module, frame)
    model.update()


def _check(model, module, frame):
    if model.forward:
        model.forward = False
        if model.frozen:
            _check_frozen(model, module, frame)
    elif model.is_outside:
        model.is_outside = False
        _record_outside(model, module, frame)
    if model.search is not None:
        _searched(model, module)
    if model.later >= _MOST_LATER:
        return
    try:
        module.reducer._check_reducer_finalized()
    except RuntimeError as error:
        if not _without_gradient(model, str(error), frame):
            model.later = _MOST_LATER  # finished by other means, or an unknown message
    except AttributeError:  # no reducer, or one without this method
        model.later = _MOST_LATER
    else:
        if model.synchronizes:
            model.synchronizes = False
            model.finished += 1
        if model.without is not None:
            model.without = None
            model.later += 1
            _record_fact(model, _words.COMPLETE, 0)


def needed():
    """What the extension needs of this module, by name."""
    return {
        "model": Model,
        "models": _models,
        "by_module": _by_module,
        "running": _running,
        "compare": compare,
        "begins_outside": begins_outside,
        "check_model": check,
    }


def _record_outside(model, module, frame):
    """Called after a backward without DDP's forward. Records repeated gradients from outside the forward."""
    if _is_without(module):
        return
    model.outside += 1
    if model.outside == _MOST_OUTSIDE:
        _record_fact(model, _words.OUTSIDE, len(model.lines), (), 0, _sites.site_of(frame))


def _thawed(module, names):
    """The parameters among these that have a gradient, with their names."""
    found = ((name, _replicas.find(module.module, name)) for name in names)
    return [(name, it) for name, it in found if it is not None and it.requires_grad and it.grad is not None]


def _averaged_by_others(model):
    """The parameters whose gradients other models of DDP average, by id."""
    found = set()
    for other in _models:
        module = other.reference() if other is not model else None
        if module is not None:
            named = module.module.named_parameters()
            found.update(id(parameter) for name, parameter in named if name not in other.frozen)
    return found


def _check_frozen(model, module, frame):
    """Called after a backward. DDP does not average parameters that required no gradient when it wrapped the model."""
    at = model.checked % len(model.frozen)
    if not _thawed(module, model.frozen[at : at + _CHECKED]):
        model.thawed = 0
        model.checked = at + _CHECKED if at + _CHECKED < len(model.frozen) else 0
        return
    model.thawed += 1
    if model.thawed == _MOST_THAWED:
        found = _thawed(module, model.frozen)
        model.frozen = ()
        averaged = _averaged_by_others(model)
        lines = [_line(name, parameter) for name, parameter in found if id(parameter) not in averaged]
        if not lines:
            return
        _record_fact(model, _words.THAWED, len(lines), _cut(lines, _MOST_BYTES), 0, _sites.site_of(frame))


def _unlisted(model, first):
    """The parameters from an index on that were never marked ready, and whether others may lack a gradient, too.

    The reducer keeps the time at which each was last marked. In the first backward, the others were marked in it.
    """
    module = model.reference()
    times = getattr(getattr(module, "reducer", None), "get_backward_stats", None)
    if times is None:
        return [], True
    unmarked = [index for index, at in enumerate(times()) if index >= first and at == 0]
    return unmarked, model.finished > 0 or model.later > 0 or model.without is not None


def _without_gradient(model, message, frame):
    """Records the gradients that the reducer lacks, from its message; false for other messages."""
    found = _INDICES.search(message)
    if found is None or _UNFINISHED not in message:
        return False
    indices = [int(index) for index in found.group(1).replace(",", " ").split()]
    # PyTorch lists at most 100 indices, ascending, and continues with dots.
    are_more = False
    if indices and message.startswith("...", found.end()):
        unmarked, are_more = _unlisted(model, indices[-1] + 1)
        indices += unmarked
    if indices == model.without:
        return True
    model.without = indices
    model.update()
    lines = model.lines
    named = [lines[index] for index in indices if index < len(lines)]
    named = _cut(named, _MOST_BYTES - len(_AND_MORE) - 1)
    if are_more:
        named = named + [_AND_MORE]
    fact = _words.GRAPH_CHANGED if _STATIC in message else _words.WITHOUT_GRADIENT
    _record_fact(model, fact, len(indices), named, min(model.finished, 2**32 - 1), _sites.site_of(frame) if frame is not None else 0)
    try:
        _record_uses(model, indices)
    except Exception:  # classes of the program may have any behavior
        pass
    return True


def _record_uses(model, indices):
    """Records the lines that use the parts of a model without gradients."""
    module = model.reference()
    if module is None or len(model.recorded_parts) >= _MOST_RECORDED_PARTS:
        return
    names = [line.split(" ", 2)[2] for line in model.lines]
    without = [names[index] for index in indices if index < len(names)]
    for part in _uses.parts(names, without):
        if part in model.recorded_parts:
            continue
        model.recorded_parts.add(part)
        below = part + "."
        those = [line for line, name in zip(model.lines, names) if name == part or name.startswith(below)]
        for code, line in _uses.lines(module.module, part):
            _record_fact(model, _words.USED_AT, len(those), _cut(those, _MOST_BYTES), 0, _sites.site_in(code, line))


def forward_raised(module, error):
    """Called for an exception of the forward. Records it if the reducer raised it for missing gradients."""
    if not _box.is_open or not isinstance(error, RuntimeError):
        return
    for model in _models:
        if model.reference() is module and model.without is None:
            _without_gradient(model, str(error), None)


def backward_raised(error, frame):
    """Called for an exception of a backward. A reducer's message does not identify its model."""
    _running.pop()
    if _running or not _box.is_open or not isinstance(error, RuntimeError):
        return  # it is raised out of the outer backward as well
    message = str(error)
    twice = _READY_TWICE in message
    models = [model for model in _models if model.reference() is not None]
    if not models or not (twice or _CHANGED in message):
        return
    model = models[0]
    found = _INDEX.search(message) if len(models) == 1 else None
    index = int(found.group(1)) if found is not None else -1
    named = model.lines[index : index + 1] if index >= 0 else []
    fact = _words.READY_TWICE if twice else _words.GRAPH_CHANGED
    _record_fact(model, fact, len(named), named, max(index, 0), _sites.site_of(frame))


def _reset():
    _models.clear()
    _by_module.clear()
    _counts.clear()
    _running.clear()


_box.on_reset.append(_reset)
