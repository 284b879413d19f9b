"""The programs of the benchmark, and the truth at their heads."""

import dataclasses
import pathlib
import re
import subprocess
import sys
import zlib

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    from pip._vendor import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOBS = ROOT / "tests" / "jobs"
# The families over doubles of NCCL: neither PyTorch's own errors nor its debug mode know their calls.
OVER_DOUBLES = ("nccl", "layers")
MARK = re.compile(r"HERE rank ((?:\d+ ?)+)")


@dataclasses.dataclass
class Case:
    """One variant of one scenario of a program."""

    family: str
    name: str
    scenario: str | None
    is_faulty: bool
    truth: dict
    text: str

    @property
    def variant(self):
        return "faulty" if self.is_faulty else "healthy"

    @property
    def id(self):
        name = self.name if self.scenario is None else f"{self.name}.{self.scenario}"
        return f"{self.family}/{name}.{self.variant}"

    @property
    def file(self):
        return self.name + ".py"

    def program(self, variants):
        """The file to run and its arguments; `variants` is the folder that variants.py has written."""
        if self.scenario is None:
            return [str(variants / self.variant / self.file)]
        return [str(JOBS / self.family / self.file), self.scenario, self.variant]

    def fingerprint(self):
        support = sorted((JOBS / "support").glob("*.py"))
        text = self.text + "".join(file.read_text() for file in support)
        return zlib.crc32(text.encode())

    def marked_lines(self):
        """Line numbers marked `HERE rank 0 2`, by rank."""
        marked = {}
        for number, line in enumerate(self.text.splitlines(), 1):
            mark = MARK.search(line)
            if mark:
                marked.update({int(rank): number for rank in mark[1].split()})
        return marked


def head(text):
    """The TOML table between `/// truth` and `///`."""
    lines = [re.sub(r"^\s*[#*]+ ?", "", line) for line in text.splitlines()]
    begin = lines.index("/// truth") + 1
    return tomllib.loads("\n".join(lines[begin : lines.index("///", begin)]))


def merged(into, table):
    """A table merged into another, recursively; the second one wins."""
    result = dict(into)
    for key, value in table.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            value = merged(result[key], value)
        result[key] = value
    return result


def cases_of(family, name, text):
    facts = head(text)
    scenarios = facts.pop("scenario", {None: {}})
    for scenario, own in scenarios.items():
        common = {key: value for key, value in facts.items() if key not in ("faulty", "healthy")}
        common = merged(common, {key: value for key, value in own.items() if key not in ("faulty", "healthy")})
        for variant in ("faulty", "healthy"):
            table = (own if scenario is not None else facts).get(variant)
            if table is None:
                continue
            if scenario is not None:
                table = merged(facts.get(variant, {}), table)
            yield Case(family, name, scenario, variant == "faulty", merged(common, table), text)


def cases():
    """All cases in the order of their files, except those that are not faults and only say that nothing can be judged."""
    found = []
    for file in sorted(JOBS.glob("*/*.py")):
        text = file.read_text()
        if "/// truth" in text and file.parent.name not in OVER_DOUBLES:
            found.extend(cases_of(file.parent.name, file.stem, text))
    return [case for case in found if not case.truth.get("code", "").startswith("DD9")]


def write_variants(folder):
    subprocess.run([sys.executable, JOBS / "variants.py", folder], check=True)
