"""Draws figures of the tables of the engine and of the coordinator in docs/performance.md against the number of
ranks: docs/scale.svg.

    python3 benches/plot.py
"""

import math
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
ENGINE = "| ranks | job | events | one event |"
COORDINATOR = "| ranks | nodes | step |"
# Beginning of the table's header, title, column, unit, budget.
PANELS = [
    (ENGINE, "One event", 3, "µs", 1),
    (ENGINE, "Worst evaluation", 5, "ms", None),
    (ENGINE, "Heap a rank", 6, "KiB", 64),
    (COORDINATOR, "Finding after the fault", 10, "s", 2),
]
WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 170, 56, 40, 64
INK, LINE, BUDGET = "#57606a", "#0969da", "#cf222e"


def rows(header):
    """The cells of a table, by number of ranks: those of the first job, if there are several."""
    text = (DOCS / "performance.md").read_text().splitlines()
    start = next(at for at, line in enumerate(text) if line.startswith(header))
    found = {}
    for line in text[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found.setdefault(number(cells[0]), cells)
    return found


def number(cell):
    """The number in a cell: "1 484 KiB" is 1484."""
    return float("".join(c for c in cell if c.isdigit() or c == "."))


def axis(values):
    """The powers of ten around these values."""
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))


def panel(index):
    header, title, column, unit, budget = PANELS[index]
    table = rows(header)
    x0, y0 = LEFT + index * (WIDTH + GAP), TOP
    points = [(ranks, number(cells[column])) for ranks, cells in table.items()]
    low, high = axis([value for _, value in points] + ([budget] if budget else []))
    first, last = math.log2(points[0][0]), math.log2(points[-1][0])

    def x(ranks):
        return x0 + (math.log2(ranks) - first) / (last - first) * WIDTH

    def y(value):
        return y0 + HEIGHT - (math.log10(value) - low) / (high - low) * HEIGHT

    def text(at_x, at_y, words, anchor="middle", size=11):
        return f'<text x="{at_x:.0f}" y="{at_y:.0f}" text-anchor="{anchor}" font-size="{size}">{words}</text>'

    def line(x1, y1, x2, y2, color, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{dashed}/>'

    parts = [text(x0 + WIDTH / 2, y0 - 16, f"{title} ({unit})", size=13)]
    for power in range(low, high + 1):
        at = y(10**power)
        parts += [line(x0, at, x0 + WIDTH, at, "#d0d7de"), text(x0 - 8, at + 4, f"{10**power:g}", "end")]
    parts += [text(x(ranks), y0 + HEIGHT + 18, f"{ranks:,.0f}".replace(",", " ")) for ranks, _ in points[::2]]
    if budget:
        parts += [line(x0, y(budget), x0 + WIDTH, y(budget), BUDGET, "4 3")]
        parts += [text(x0 + 4, y(budget) - 5, f"budget {budget} {unit}", "start")]
    path = " ".join(f"{x(ranks):.1f},{y(value):.1f}" for ranks, value in points)
    parts += [f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="2"/>']
    parts += [f'<circle cx="{x(ranks):.1f}" cy="{y(value):.1f}" r="3" fill="{LINE}"/>' for ranks, value in points]
    return parts


def main():
    width = LEFT + len(PANELS) * (WIDTH + GAP) - GAP + 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 48}"'
        f' font-family="sans-serif" fill="{INK}">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index in range(len(PANELS)):
        lines += panel(index)
    lines += [f'<text x="{width / 2:.0f}" y="{TOP + HEIGHT + 40}" text-anchor="middle" font-size="12">ranks</text>', "</svg>"]
    (DOCS / "scale.svg").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
