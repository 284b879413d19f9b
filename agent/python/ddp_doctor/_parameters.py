"""The parameters of DDP's models: what they are when a model is wrapped, and which got no gradient.

DDP's reducer knows at the end of every backward whether it has all gradients, and says so when it is
asked; that costs the same for a model of ten parameters and of ten thousand. Without it a rank whose
backward left a parameter out would go on as if nothing were wrong, while its peers wait for it.

Kept are names, never parameters. What the reducer says is in words, and this module reads them: a
version that words them otherwise is one of which less is known.
"""

import ctypes
import re
import weakref

from . import _box, _groups, _sites, _words
from ._native import ParameterList, text

# Models of a process that are watched.
_MOST_MODELS = 64
# A text of the black box, and how many of them a model's layout may take.
_MOST_BYTES = 4096
_MOST_PIECES = 16
# How often a model may be without a gradient at the end of a backward and get it in a later one,
# before that is taken for the program's way: two losses of one forward, say.
_MOST_LATER = 8

_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_STATIC = "not compatible with static_graph"
_READY_TWICE = "Expected to mark a variable ready only once"
_CHANGED = "Your training graph has changed in this iteration"
_INDICES = re.compile(r"indices which did not receive grad for rank \d+: *([\d, ]+)")
_INDEX = re.compile(r"Parameter at index (\d+)")

_models = []
# Group → models of it so far.
_counts = {}
# One entry for each backward that runs now, the reentrant ones inside others as well.
_running = []


class Model:
    __slots__ = ("reference", "group", "number", "lines", "without", "later")

    def __init__(self, module, group, number, lines):
        self.reference = weakref.ref(module)
        self.group = group
        self.number = number
        self.lines = lines
        # Indices of what had no gradient at the end of the last backward; None: all had.
        self.without = None
        self.later = 0


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
    _models[:] = [model for model in _models if model.reference() is not None]
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


def backward_begins():
    _running.append(None)


def backward_ended(frame):
    """A backward is over; whether the reducers have what they need is asked once the outermost is."""
    _running.pop()
    if _running or not _models or not _box.is_open:
        return
    for model in _models:
        module = model.reference()
        if module is None or model.later >= _MOST_LATER:
            continue
        try:
            module.reducer._check_reducer_finalized()
        except RuntimeError as error:
            if not _without_gradient(model, str(error), frame):
                model.later = _MOST_LATER  # it is finished by hand, or speaks other words
        except AttributeError:  # a model that has no reducer, or one that cannot be asked
            model.later = _MOST_LATER
        else:
            if model.without is not None:
                model.without = None
                model.later += 1
                _say(model, _words.COMPLETE, 0)


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
    _say(model, fact, len(indices), named, 0, _sites.site_of(frame) if frame is not None else 0)
    return True


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
    _counts.clear()
    _running.clear()


_box.on_reset.append(_reset)
