"""Plots as SVG text, and the ticks of an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 60, 18, 12, 30
"""The margins around the area of a plot, in SVG units. `report.js` uses the same margins.

`left_margin` returns a wider left margin for long texts of ticks.
"""
COLOURS = 8
"""The number of colours in `report.css`. With more runs, the colours repeat, and the lines have another dash."""
DASHES = ("", "6 3", "2 3")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers between two limits, for the ticks of an axis; `[low]` for equal limits."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float, digits: int = 3) -> str:
    """Return a number as text for a tick, with `digits` significant digits: `1.2k`, `3M`, `0.05`, `2.5e-3`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{_rounded(value / size, digits)}{unit}"
    if 0 < abs(value) < 0.01:
        power = math.floor(math.log10(abs(value)) + 1e-9)
        return f"{_rounded(value / 10.0**power, digits)}e{power}"
    return _rounded(value, digits)


def _rounded(value: float, digits: int) -> str:
    return f"{float(f'{value:.{digits}g}'):.15g}"


def labels(values: Sequence[float]) -> list[str]:
    """Return the texts of ticks, with 3 significant digits. If two texts would be equal, all texts have more digits."""
    found: list[str] = []
    for digits in range(3, 13):
        found = [short(value, digits) for value in values]
        if len(set(found)) == len(found):
            break
    return found


def left_margin(texts: Sequence[str]) -> int:
    """Return the width of the margin left of a plot, in SVG units, so that the texts of its ticks fit in it."""
    return max(LEFT, 12 + 9 * max(map(len, texts), default=0))


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis for some finite values: the lowest and the highest value.

    If these two are equal, the limits are moved apart. Without values, the limits are 0 and 1.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        pad = abs(low) * 0.1 or 0.5
        return low - pad, high + pad
    return low, high


def line_style(index: int) -> str:
    """Return the SVG attributes of the line of a run: colour and dash. `index` is the index of the run, from 0."""
    dash = DASHES[index // COLOURS % len(DASHES)]
    return f'class="line c{index % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def plot(title: str, description: str, lines: Sequence[tuple[int, Sequence[tuple[float, float]]]], ident: str) -> str:
    """Return a plot of lines over steps.

    Args:
        title: the title of the plot, for screen readers.
        description: the content of the plot, in one sentence.
        lines: for each line, the index of its run in the report, from 0, and its points (step, value). A line has a gap
            at a value that is not finite.
        ident: the prefix of the HTML ids of title and description.
    """
    points = [point for _, line in lines for point in line if math.isfinite(point[1])]
    low, high = limits([y for _, y in points])
    first, last = limits([x for x, _ in points])
    first = 0.0 if 0 < first < last / 2 else first
    rows, columns = ticks(low, high), ticks(first, last)
    names = labels(rows)
    left = left_margin(names)

    def x_of(x: float) -> float:
        return left + (x - first) / (last - first) * (WIDTH - left - RIGHT)

    def y_of(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    grid = "".join(
        f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}"/>'
        f'<text x="{left - 6}" y="{y_of(y) + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        for y, name in zip(rows, names)
    )
    grid += f'<line class="base" x1="{left}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>'
    grid += "".join(
        f'<text x="{x_of(x):.1f}" y="{HEIGHT - 9}" text-anchor="middle">{escape(name)}</text>'
        for x, name in zip(columns, labels(columns))
    )
    paths = "".join(f'<path {line_style(index)} d="{path(line, x_of, y_of)}"/>' for index, line in lines)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{ident}-t {ident}-d">'
        f'<title id="{ident}-t">{escape(title)}</title><desc id="{ident}-d">{escape(description)}</desc>'
        f'<g class="axes">{grid}</g><g class="lines">{paths}</g></svg>'
    )


def path(line: Sequence[tuple[float, float]], x_of: Callable[[float], float], y_of: Callable[[float], float]) -> str:
    """Return the SVG path of a line. The path has a gap where a value is not finite. A single point becomes a dot.

    Args:
        line: the points (step, value).
        x_of: a function from a step to its horizontal position.
        y_of: a function from a value to its vertical position.
    """
    text, pen = "", False
    for index, (x, y) in enumerate(line):
        if not math.isfinite(y):
            pen = False
            continue
        follows = index + 1 < len(line) and math.isfinite(line[index + 1][1])
        text += f"{'L' if pen else 'M'}{x_of(x):.1f} {y_of(y):.1f}"
        text += "" if pen or follows else "h.1"
        pen = True
    return text
