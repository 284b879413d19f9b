"""The modules of the package use each other in one direction."""

import ast
import pathlib
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "ddp_doctor"


def modules():
    """The modules of the package, except for its face, by their path from it."""
    files = {file.relative_to(PACKAGE).with_suffix("").parts: file for file in PACKAGE.rglob("*.py")}
    return {parts: file for parts, file in files.items() if parts[-1] != "__init__"}


def used_by(parts, file, known):
    """The modules of the package that a module imports, at once or later."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = parts[: -node.level] + tuple((node.module or "").split(".") if node.module else ())
            for name in node.names:
                yield from (path for path in (base, base + (name.name,)) if path in known)


def reached(uses, start):
    found, open_ = set(), [start]
    while open_:
        new = uses[open_.pop()] - found
        found |= new
        open_.extend(new)
    return found


class Structure(unittest.TestCase):
    def test_modules_do_not_use_each_other(self):
        known = modules()
        uses = {parts: set(used_by(parts, file, known)) for parts, file in known.items()}
        self.assertGreater(sum(map(len, uses.values())), 40)
        for module in uses:
            self.assertNotIn(module, reached(uses, module))


if __name__ == "__main__":
    unittest.main()
