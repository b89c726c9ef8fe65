"""Costs: the time of a training by callback and by part, such as `forward`, as table, JSON and HTML."""

from __future__ import annotations

import html
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ....events.recording.files import written
from .verdict import Verdict, duration

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The head and the rows of a table."""

VERSION = 1
"""The version of the JSON."""
SHOWN = 8
"""The number of callbacks in the table. The JSON has all callbacks."""


@dataclass(frozen=True)
class Part:
    """The time of one part of the training, such as `forward`."""

    part: str
    """The name of the part."""
    seconds: float
    """The seconds of this part in the whole session."""
    share: float
    """The fraction of the time of the session, from 0 to 1."""
    median: float
    """The seconds of this part in the median step; 0 for a part that most steps do not have. With several ranks, the
    largest value of all ranks."""
    times: int = 0
    """How many times a rare part, such as `save`, began; 0 for a part that most steps have."""


@dataclass(frozen=True)
class CallbackCost:
    """The time of one callback at one event.

    The time of work that the callback starts, such as an evaluation, is not included.
    """

    callback: str
    """The id of the callback or function."""
    event: str
    """The name of the event."""
    seconds: float
    """The seconds of all calls in the session."""
    calls: int
    """The number of calls."""


@dataclass(frozen=True)
class Compilation:
    """A function that torch.compile compiled again."""

    function: str
    """The name of the function."""
    reason: str
    """The reason for the new compilation: the guard that failed."""
    seconds: float
    """Seconds that the compilation took."""


@dataclass(frozen=True)
class Costs:
    """The time of a training session, by part and by callback. `print` shows tables. `to_json` returns all values."""

    steps: int
    """Completed steps of the session."""
    seconds: float
    """The length of the session in seconds."""
    step_seconds: float
    """The seconds of the median step. Steps that log, evaluate, save or collect garbage do not count."""
    parts: list[Part]
    """The time by part, in the order of a step."""
    callbacks: list[CallbackCost]
    """The time by callback and event, the slowest first."""
    verdict: Verdict
    """The part that limits the speed, with evidence and remedy."""
    samples_per_second: float
    """Samples per second of all ranks, over the whole session."""
    tokens_per_second: float | None = None
    """Tokens per second of all ranks; None if the run does not count tokens."""
    mfu: float | None = None
    """Model FLOPs utilization: the share of the peak speed of the device that the model uses. None if the peak or the
    operations of the model are unknown."""
    ranks: list[dict[str, float]] = field(default_factory=list)
    """For each rank, a dict: part -> seconds in the median step. Empty for one rank, and before the training ends."""
    recompilations: list[Compilation] = field(default_factory=list)
    """The functions that torch.compile compiled again, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Return all values as a dict.

        `verdict` is the text of the verdict. `bound` is the field `bound` of the verdict, such as `input`.
        """
        return {"version": VERSION, **asdict(self), "verdict": str(self.verdict), "bound": self.verdict.bound}

    def to_json(self) -> str:
        """Return all values as JSON."""
        return json.dumps(written(self.to_dict()), indent=2, allow_nan=False)

    def dearest(self, count: int = 3) -> list[tuple[str, float]]:
        """Return the callbacks that took the most time, the slowest first, as pairs of id and seconds.

        The seconds are the sum over all events.

        Args:
            count: the number of callbacks.
        """
        sums: dict[str, float] = {}
        for each in self.callbacks:
            sums[each.callback] = sums.get(each.callback, 0.0) + each.seconds
        return sorted(sums.items(), key=lambda item: -item[1])[:count]

    def tables(self) -> list[Table]:
        """Return the tables of parts, callbacks and recompilations. A table without rows is left out."""
        parts: list[tuple[str, ...]] = [
            (
                each.part,
                duration(each.median) if each.median else f"{each.times} times" if each.times else "-",
                duration(each.seconds),
                f"{each.share:.1%}",
            )
            for each in self.parts
            if each.seconds > 0
        ]
        callbacks: list[tuple[str, ...]] = [
            (each.callback, each.event, duration(each.seconds / max(1, each.calls)), duration(each.seconds))
            for each in self.callbacks[:SHOWN]
        ]
        again: list[tuple[str, ...]] = [
            (each.function, each.reason, duration(each.seconds)) for each in self.recompilations
        ]
        tables: list[Table] = [
            (("part", "median step", "session", "share"), parts),
            (("callback", "event", "call", "session"), callbacks),
            (("compiled again", "reason", "time"), again),
        ]
        return [(head, rows) for head, rows in tables if rows]

    def facts(self) -> list[str]:
        """Return the two lines above the tables: the text of the field `verdict`, and the speed."""
        speed = f"{self.steps} steps in {duration(self.seconds)}, {self.samples_per_second:,.0f} samples a second"
        if self.tokens_per_second:
            speed += f", {self.tokens_per_second:,.0f} tokens a second"
        if self.step_seconds:
            speed += f", median step {duration(self.step_seconds)}"
        if self.mfu is not None:
            speed += f", {self.mfu:.1%} of the device's peak"
        return [str(self.verdict), speed]

    def __str__(self) -> str:
        lines = self.facts()
        for head, rows in self.tables():
            widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
            lines.append("")
            lines += [
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in (head, *rows)
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        text = "".join(f"<div>{html.escape(line)}</div>" for line in self.facts())
        for head, rows in self.tables():
            cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
            body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            text += f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
        return text
