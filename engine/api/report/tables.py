"""Tables and numbers of the report, as HTML text. All text is escaped, except the text of `Html` objects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from typing import Any


@dataclass(frozen=True)
class Html:
    """Text that is already HTML, so that a table does not escape it."""

    text: str
    """The text."""


@dataclass(frozen=True)
class Number:
    """A cell with a number, which is aligned to the right."""

    value: Any
    """The number, or None for an empty cell."""
    text: str = ""
    """The text of the cell. Default: the number as `digits` formats it."""


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], marked: Iterable[int] = (), numbers: int = -1
) -> str:
    """Return a table in a box that scrolls sideways. The first cell of each row is the header of the row.

    Args:
        caption: the caption of the table.
        heads: the names of the columns.
        rows: the cells: text, `Number` or `Html`.
        marked: the indices of the rows to highlight. The first row has the index 0.
        numbers: the index of the first column with numbers; -1 for none. The heads from this column on are aligned
            to the right.
    """
    head = "".join(
        f'<th scope="col"{_n(0 <= numbers <= index)}>{escape(head)}</th>' for index, head in enumerate(heads)
    )
    head = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    marked = set(marked)
    lines = "".join(
        f"<tr{_class('differs' if index in marked else '')}>"
        + "".join(_cell(cell, column == 0) for column, cell in enumerate(row))
        + "</tr>"
        for index, row in enumerate(rows)
    )
    return (
        f'<div class="scroll"><table>{f"<caption>{escape(caption)}</caption>" if caption else ""}'
        f"{head}<tbody>{lines}</tbody></table></div>"
    )


def _cell(cell: Any, first: bool) -> str:
    tag, more = ("th", ' scope="row"') if first else ("td", "")
    if isinstance(cell, Html):
        return f"<{tag}{more}>{cell.text}</{tag}>"
    if isinstance(cell, Number):
        text = cell.text or ("" if cell.value is None else digits(cell.value))
        return f'<{tag}{more} class="n">{escape(text)}</{tag}>'
    return f"<{tag}{more}>{escape(str(cell))}</{tag}>"


def _n(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def digits(value: Any) -> str:
    """Return a number as text: an integer with commas, any other number with five significant digits.

    A float of 10,000 or more without decimals counts as an integer. A value that is not a number becomes its `str`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) >= 1e4):
        return f"{int(value):,}"
    return f"{value:.5g}"


def duration(seconds: float | None) -> str:
    """Return a duration such as `1.5 s`, `12 min 5 s` or `3 h 20 min`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def moment(seconds: float | None) -> str:
    """Return a time as text in UTC, such as `2026-01-31 10:20`; a dash if the time is not known.

    Args:
        seconds: the time in seconds since 1970; None or 0 if it is not known.
    """
    if not seconds:
        return "-"
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return "-"
