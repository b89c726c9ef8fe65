"""Comparison of the output that a page shows with what its program prints.

Write the output into the page as the program prints it. Three rules apply:

- Each shown line must be printed, in the order of the page. A page may omit printed lines.
- Numbers must be equal: steps, counts, sizes, learning rates. Only a number with 4 or more digits after the point may
  differ, by 1 in 1000, because the kernels of CPUs round differently.
- `...` stands for any text. Write it for what differs between two runs of the program, such as times, speeds and paths.
"""

from __future__ import annotations

import math
import re

ANY = "..."
ROUNDED = r"-?\d+\.\d{4,}(?:e[+-]?\d+)?"
"""A number that may differ by `TOLERANCE`."""
TOLERANCE = 1e-3
NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
PART = re.compile(rf"({re.escape(ANY)}|{ROUNDED})")


def first_missing(shown: str, printed: str) -> str | None:
    """Return the first shown line that is not printed after the lines above it. None: all lines are printed."""
    lines = iter(printed.splitlines())
    wanted = (line for line in shown.splitlines() if line.strip() != ANY)
    return next((line for line in wanted if not any(agrees(line, each) for each in lines)), None)


def agrees(shown: str, printed: str) -> bool:
    """Return whether a printed line is the shown line, by the rules of this module."""
    parts = PART.split(shown)
    found = re.fullmatch("".join(map(_pattern, parts)), printed)
    numbers = [float(part) for part in parts if re.fullmatch(ROUNDED, part)]
    return found is not None and all(
        math.isclose(float(each), number, rel_tol=TOLERANCE) for each, number in zip(found.groups(), numbers)
    )


def _pattern(part: str) -> str:
    if part == ANY:
        return ".*"
    return f"({NUMBER})" if re.fullmatch(ROUNDED, part) else re.escape(part)
