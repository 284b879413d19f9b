"""Finds the lines at which a program uses parts of its model, in the code of its forwards.

A branch that was not taken leaves no trace at run time, but the forward around it contains a line that
names the part without gradients. It is searched for only once such a part is known.
"""

from .. import _sites

# Maximum number of parts per model.
_MOST_PARTS = 8
# Maximum number of lines per part.
_MOST_LINES = 4
# Instructions with which a method accesses an attribute of its object.
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def parts(names, without):
    """Paths of the largest parts of a model in which no parameter has a gradient, in model order.

    `names` are all parameters, `without` those without a gradient.
    """
    there, lacking = {}, {}
    for count, listed in ((there, names), (lacking, without)):
        for name in listed:
            for part in _ways_to(name):
                count[part] = count.get(part, 0) + 1
    found = []
    for name in without:
        part = next((part for part in _ways_to(name) if lacking[part] == there.get(part)), None)
        if part is not None and part not in found:
            found.append(part)
            if len(found) == _MOST_PARTS:
                break
    return found


def _ways_to(name):
    """The prefixes "a", "a.b" and "a.b.c" of "a.b.c"."""
    end = name.find(".")
    while end >= 0:
        yield name[:end]
        end = name.find(".", end + 1)
    yield name


def lines(module, part):
    """The user's lines, as `(code, line)`, at which a forward uses a part of a module."""
    path = part.split(".")
    owners = [module]
    for name in path[:-1]:
        owners.append(getattr(owners[-1], name))
    # A container does not use its parts; the code that uses the container does.
    for owner, name in reversed(list(zip(owners, path))):
        found = _named_in(type(owner), name)
        if found:
            return found[:_MOST_LINES]
    return []


def _named_in(kind, name):
    """Lines in the forward of a class that access this attribute; if there are none, in other methods."""
    forward = getattr(getattr(kind, "forward", None), "__code__", None)
    if forward is None or not _is_of_model(forward):
        return []
    found = _lines_of(forward, name)
    if found:
        return found
    for base in kind.__mro__:
        for method, value in vars(base).items():
            code = getattr(value, "__code__", None)
            if code is not None and method != "__init__" and _is_of_model(code):
                found.extend(_lines_of(code, name))
    return found


def _is_of_model(code):
    """Whether the code belongs to the program or to an installed package that defines the model."""
    return _sites.entry_of(code)[1] in (_sites.USER, _sites.LIBRARY)


def _lines_of(code, name):
    import dis  # imported only when needed

    found = []
    if name in code.co_names:
        line = None
        for instruction in dis.get_instructions(code):
            line = _line(instruction, line)
            if instruction.opname in _ATTRIBUTES and instruction.argval == name and line is not None:
                if (code, line) not in found:
                    found.append((code, line))
    for inner in code.co_consts:
        if hasattr(inner, "co_names"):  # a comprehension, a lambda
            found.extend(_lines_of(inner, name))
    return found


def _line(instruction, before):
    """The line of an instruction; `before` is that of the previous instruction."""
    positions = getattr(instruction, "positions", None)
    if positions is not None and positions.lineno is not None:
        return positions.lineno
    starts = instruction.starts_line
    return starts if starts is not None and not isinstance(starts, bool) else before
