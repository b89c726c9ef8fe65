"""Curves: the logged values of a run, and the choice of the points that a page draws."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

AXES = ("step", "seconds", "samples")
"""The horizontal axes of a curve."""


@dataclass
class Curve:
    """The values of one name, such as `loss`, over the steps of a run."""

    steps: list[int] = field(default_factory=list)
    """The step of each value."""
    seconds: list[float | None] = field(default_factory=list)
    """The training time at each value, in seconds; None for a time that is not known."""
    values: list[float] = field(default_factory=list)
    """The values. They may be NaN or infinite."""

    def add(self, step: int, seconds: float | None, value: float) -> None:
        """Append a value with its step and its training time in seconds. `seconds` is None if the time is not known."""
        self.steps.append(step)
        self.seconds.append(seconds)
        self.values.append(value)

    @property
    def finite(self) -> list[tuple[int, float]]:
        """The finite values with their steps."""
        return [(step, value) for step, value in zip(self.steps, self.values) if math.isfinite(value)]

    def reduced(self, most: int) -> Curve:
        """Return this curve, reduced to about `most` points if it has more. The function `kept` chooses the points."""
        chosen = kept(self.values, most)
        if len(chosen) == len(self.values):
            return self
        steps = [self.steps[index] for index in chosen]
        seconds = [self.seconds[index] for index in chosen]
        values = [self.values[index] for index in chosen]
        return Curve(steps, seconds, values)


def kept(values: Sequence[float], most: int) -> list[int]:
    """Return the indices of the values to keep, so that a curve has about `most` points.

    A curve with at most `most` values keeps all of them. A longer curve is divided into `most // 2` parts of equal
    length. Each part keeps its minimum and its maximum; a part without finite values keeps its first value. The curve
    also keeps its first value, its last value and its first value that is not finite.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    parts = max(1, most // 2)
    chosen = {0, count - 1}
    for part in range(parts):
        inside = range(part * count // parts, (part + 1) * count // parts)
        finite = [index for index in inside if math.isfinite(values[index])]
        if finite:
            chosen |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        else:
            chosen.add(inside[0])
    chosen.update(index for index in [first_broken(values)] if index is not None)
    return sorted(chosen)


def first_broken(values: Sequence[float]) -> int | None:
    """Return the index of the first NaN or infinite value; None if all values are finite."""
    return next((index for index, value in enumerate(values) if not math.isfinite(value)), None)


def clock_of(known: Iterable[tuple[int, float]]) -> Callable[[int], float | None]:
    """Return a function that takes a step and returns the training time at this step, in seconds.

    Between two known steps, the function interpolates. Before the first and after the last known step, it returns None.

    Args:
        known: pairs of step and training time in seconds.
    """
    pairs = sorted(set(known))
    steps = [step for step, _ in pairs]

    def seconds_of(step: int) -> float | None:
        index = bisect_right(steps, step)
        if index and steps[index - 1] == step:
            return pairs[index - 1][1]
        if index == 0 or index == len(steps):
            return None
        (first, start), (last, end) = pairs[index - 1], pairs[index]
        return start + (end - start) * (step - first) / (last - first)

    return seconds_of


def curves_of(rows: Iterable[dict[str, Any]], clock: Callable[[int], float | None]) -> dict[str, Curve]:
    """Return the curves of the logged numbers: name of the number, such as `loss` -> curve.

    `step`, `seconds` and `epoch` have no curve.

    Args:
        rows: the logged rows. Each row has a `step`, and may have `seconds`, the training time at this step.
        clock: a function from `clock_of`, for rows without `seconds`.
    """
    curves: dict[str, Curve] = {}
    for row in rows:
        step = row["step"]
        seconds = row["seconds"] if "seconds" in row else clock(step)
        for name, value in row.items():
            if name in ("step", "seconds", "epoch") or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            curves.setdefault(name, Curve()).add(step, seconds, float(value))
    return curves
