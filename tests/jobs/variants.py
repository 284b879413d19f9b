"""Writes every program of this folder as its faulty and its healthy variant: variants.py FOLDER.

A program holds a fault and its healthy twin. Lines between `# if FAULTY`, `# if HEALTHY`, `# else` and `# end`
belong to one of them; the other variant has empty lines in their place, so that line numbers are the same. The
variants are FOLDER/faulty/NAME.py and FOLDER/healthy/NAME.py.
"""

import re
import shutil
import sys
from pathlib import Path

DIRECTIVE = re.compile(r"\s*# (if FAULTY|if HEALTHY|else|end)$")
VARIANT = re.compile(r"# \[(faulty|healthy)\]$", re.MULTILINE)


def variant(text, faulty):
    """The lines of one variant."""
    is_kept = True
    for line in text.splitlines():
        directive = DIRECTIVE.match(line)
        if directive is None:
            yield line if is_kept else ""
            continue
        yield ""
        match directive[1]:
            case "if FAULTY":
                is_kept = faulty
            case "if HEALTHY":
                is_kept = not faulty
            case "else":
                is_kept = not is_kept
            case _:
                is_kept = True


def main():
    jobs, folder = Path(__file__).parent, Path(sys.argv[1])
    for kind in ("faulty", "healthy"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        shutil.copytree(jobs / "support", folder / kind / "support", dirs_exist_ok=True)
    for program in jobs.glob("*/*.py"):
        text = program.read_text()
        for kind in VARIANT.findall(text):
            lines = "\n".join(variant(text, kind == "faulty"))
            (folder / kind / program.name).write_text(lines + "\n")


main()
