"""The parameters of DDP's models: what they are when a model is wrapped, and which got no gradient.

DDP's reducer knows at the end of every backward whether it has all gradients, and says so when it is
asked; that costs the same for a model of ten parameters and of ten thousand. Without it a rank whose
backward left a parameter out would go on as if nothing were wrong, while its peers wait for it.

Kept are names, never parameters. What the reducer says is in words, and this module reads them: a
version that words them otherwise is one of which less is known.
"""

import ctypes
import re
import time
import weakref

from . import _box, _groups, _init, _sites, _uses, _words
from ._native import ParameterList, text

# Models of a process that are watched.
_MOST_MODELS = 64
# A text of the black box, and how many of them a model's layout may take.
_MOST_BYTES = 4096
_MOST_PIECES = 16
# How often a model may be without a gradient at the end of a backward and get it in a later one,
# before that is taken for the program's way: two losses of one forward, say.
_MOST_LATER = 8
# Parts of a model of which it is told where the program uses them.
_MOST_TOLD_PARTS = 8

# A search for unused parameters: DDP notes what it found in its first ten iterations, and in every
# hundredth. After so many it is said that there was nothing to find.
_FIRST_ITERATIONS = 10
_EVERY = 50
_ITERATIONS = 200
_KEPT_TIMES = 15

# Steps whose gradients came from outside DDP's forward, before that is said.
_MOST_OUTSIDE = 3

_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_STATIC = "not compatible with static_graph"
_READY_TWICE = "Expected to mark a variable ready only once"
_CHANGED = "Your training graph has changed in this iteration"
_INDICES = re.compile(r"indices which did not receive grad for rank \d+: *([\d, ]+)")
_INDEX = re.compile(r"Parameter at index (\d+)")

_models = []
# id(module) → its model, for modules that live.
_by_module = {}
# Group → models of it so far.
_counts = {}
# One entry for each backward that runs now, the reentrant ones inside others as well.
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
        "synchronises",
        "look",
        "outside",
        "search",
        "told_parts",
    )

    def __init__(self, module, group, number, lines):
        self.reference = weakref.ref(module)
        self.group = group
        self.number = number
        self.lines = lines
        # Indices of what had no gradient at the end of the last backward; None: all had.
        self.without = None
        self.later = 0
        # Backwards after which all had one and were averaged.
        self.finished = 0
        # Its forward ran since the last backward, and the gradients are to be averaged after it.
        self.forward = False
        self.synchronises = False
        # A parameter had no gradient before the backward that runs now, and no forward.
        self.look = False
        # How often in a row it had one after such a backward.
        self.outside = 0
        # The search for unused parameters; None: there is none, or it is known to find some.
        self.search = Search() if module.find_unused_parameters else None
        # Parts of the model that had no gradients, of which it was told where they are used.
        self.told_parts = set()


class Search:
    __slots__ = ("backwards", "times")

    def __init__(self):
        self.backwards = 0
        # Nanoseconds that the last ones took.
        self.times = []


def _say(model, fact, total, lines=(), first=0, site=0):
    data = "".join(line + "\n" for line in lines)
    said = ParameterList(
        ctypes.sizeof(ParameterList), fact, model.group, model.number, first, total, text(data, _MOST_BYTES), site
    )
    _box.lib.parameters(ctypes.byref(said))


def _line(name, parameter):
    dtype = str(parameter.dtype).rsplit(".", 1)[-1]
    shape = ",".join(str(int(size)) for size in parameter.shape) or "-"
    return "%s %s %s" % (dtype, shape, name.replace("\n", " "))


def _describe(module, parameters):
    """A line for each parameter, in the order in which the reducer numbers them."""
    names = {}
    for name, parameter in module.named_parameters():
        names[id(parameter)] = name
    return [_line(names.get(id(parameter), "?"), parameter) for parameter in parameters]


def _cut(lines, most):
    """As many of the first lines as have room."""
    taken = room = 0
    for line in lines:
        room += len(line.encode("utf-8", "replace")) + 1
        if room > most:
            break
        taken += 1
    return lines[:taken]


def _wrapped(module, parameters, frame):
    """A model is about to be compared with those of its peers, and wrapped."""
    group = _groups.number_of(module.process_group)
    if not group:
        return
    if parameters:
        _init.say_gpu(parameters[0].device)
    _models[:] = [model for model in _models if model.reference() is not None]
    _by_module.clear()
    _by_module.update((id(model.reference()), model) for model in _models)
    number = _counts[group] = _counts.get(group, 0) + 1
    lines = _describe(module.module, parameters)
    model = Model(module, group, number, lines)
    site = _sites.site_of(frame)
    first = 0
    for _ in range(_MOST_PIECES):
        piece = _cut(lines[first : first + _MOST_BYTES], _MOST_BYTES)
        _say(model, _words.LAYOUT, len(lines), piece, first, site)
        first += len(piece)
        if not piece or first >= len(lines):
            break
    if len(_models) < _MOST_MODELS:
        _models.append(model)
        _by_module[id(module)] = model


def wrap_build(original, getframe):
    """`DistributedDataParallel._build_params_for_reducer`, with what it returns recorded."""

    def _build_params_for_reducer(self, *args, **kwargs):
        built = original(self, *args, **kwargs)
        if _box.is_open:
            try:
                _wrapped(self, built[0], getframe(1))
            except Exception:
                pass
        return built

    _build_params_for_reducer.__doc__ = original.__doc__
    return _build_params_for_reducer


def wrap_post_forward(original):
    """`DistributedDataParallel._post_forward`, in which the search for unused parameters is, timed."""

    def _post_forward(self, *args, **kwargs):
        model = _by_module.get(id(self))
        if model is None or model.search is None:
            return original(self, *args, **kwargs)
        begin = time.perf_counter_ns()
        result = original(self, *args, **kwargs)
        search = model.search
        if search is not None:
            search.times.append(time.perf_counter_ns() - begin)
            del search.times[:-_KEPT_TIMES]
        return result

    return _post_forward


def _searched(model, module):
    """A backward after a search is over. Asks DDP from time to time what its searches found."""
    search = model.search
    search.backwards += 1
    if search.backwards > _FIRST_ITERATIONS and search.backwards % _EVERY:
        return
    noted = module._get_ddp_logging_data()
    unused = noted.get("unused_parameter_size")
    if unused or module.static_graph:
        model.search = None
    elif unused is not None and noted.get("iteration", 0) >= _ITERATIONS:
        model.search = None
        times = sorted(search.times)
        micros = times[len(times) // 2] // 1000 if times else 0
        _say(model, _words.NEVER_UNUSED, len(model.lines), (), min(micros, 2**32 - 1))


def forward_begins(module):
    """A forward of DDP's after which there may be a backward."""
    model = _by_module.get(id(module))
    if model is not None:
        model.forward = True
        model.synchronises = module.require_backward_grad_sync


def _is_without(module):
    """Whether the first parameter that needs a gradient has none; false where there is no such one.

    Of one parameter alone, and only of a model that DDP's forward passes by.
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
        if model.forward:
            model.outside = 0
        elif model.outside < _MOST_OUTSIDE:
            module = model.reference()
            model.look = module is not None and _is_without(module)


def backward_ended(frame):
    """A backward is over; whether the reducers have what they need is asked once the outermost is."""
    _running.pop()
    if _running or not _models or not _box.is_open:
        return
    for model in _models:
        module = model.reference()
        if module is None:
            continue
        if model.forward:
            model.forward = False
        elif model.look:
            model.look = False
            _looked(model, module, frame)
        if model.search is not None:
            _searched(model, module)
        if model.later >= _MOST_LATER:
            continue
        try:
            module.reducer._check_reducer_finalized()
        except RuntimeError as error:
            if not _without_gradient(model, str(error), frame):
                model.later = _MOST_LATER  # it is finished by hand, or speaks other words
        except AttributeError:  # a model that has no reducer, or one that cannot be asked
            model.later = _MOST_LATER
        else:
            if model.synchronises:
                model.synchronises = False
                model.finished += 1
            if model.without is not None:
                model.without = None
                model.later += 1
                _say(model, _words.COMPLETE, 0)


def _looked(model, module, frame):
    """A backward without DDP's forward is over: did it leave a gradient?"""
    if _is_without(module):
        return
    model.outside += 1
    if model.outside == _MOST_OUTSIDE:
        _say(model, _words.OUTSIDE, len(model.lines), (), 0, _sites.site_of(frame))


def _without_gradient(model, message, frame):
    """Says what the reducer lacks by its own words; false where these are not they."""
    found = _INDICES.search(message)
    if found is None or _UNFINISHED not in message:
        return False
    indices = [int(index) for index in found.group(1).replace(",", " ").split()]
    if indices == model.without:
        return True
    model.without = indices
    lines = model.lines
    named = _cut([lines[index] for index in indices if index < len(lines)], _MOST_BYTES)
    fact = _words.GRAPH_CHANGED if _STATIC in message else _words.WITHOUT_GRADIENT
    _say(model, fact, len(indices), named, min(model.finished, 2**32 - 1), _sites.site_of(frame) if frame is not None else 0)
    try:
        _tell_uses(model, indices)
    except Exception:  # the program's classes are of any kind
        pass
    return True


def _tell_uses(model, indices):
    """Says by which lines the program uses the parts of a model that got no gradients."""
    module = model.reference()
    if module is None or len(model.told_parts) >= _MOST_TOLD_PARTS:
        return
    names = [line.split(" ", 2)[2] for line in model.lines]
    without = [names[index] for index in indices if index < len(names)]
    for part in _uses.parts(names, without):
        if part in model.told_parts:
            continue
        model.told_parts.add(part)
        below = part + "."
        those = [line for line, name in zip(model.lines, names) if name == part or name.startswith(below)]
        for code, line in _uses.lines(module.module, part):
            _say(model, _words.USED_AT, len(those), _cut(those, _MOST_BYTES), 0, _sites.site_in(code, line))


def forward_raised(module, error):
    """An exception leaves the forward: the reducer's own, where nobody asked it before."""
    if not _box.is_open or not isinstance(error, RuntimeError):
        return
    for model in _models:
        if model.reference() is module and model.without is None:
            _without_gradient(model, str(error), None)


def backward_raised(error, frame):
    """An exception leaves a backward: a reducer's, that does not say which one it is of."""
    _running.pop()
    if _running or not _box.is_open or not isinstance(error, RuntimeError):
        return  # it leaves the backward around this one as well
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
    _say(model, fact, len(named), named, max(index, 0), _sites.site_of(frame))


def _reset():
    _models.clear()
    _by_module.clear()
    _counts.clear()
    _running.clear()


_box.on_reset.append(_reset)
