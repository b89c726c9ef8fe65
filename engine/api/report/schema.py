"""The data of a report as plain values, which `trainbus report --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ....events.recording.files import written
from .collect import RunData, differing
from .curves import Curve

VERSION = 1
"""The version of the format of `report_data`."""
POINTS = 12_000
"""The approximate limit for the points of a report, all curves together."""
FEWEST, MOST = 40, 600
"""The least and the largest number of points of one curve."""


def points_of_a_curve(runs: Sequence[RunData]) -> int:
    """Return the largest number of points per curve: `POINTS` / number of curves, at least `FEWEST`, at most `MOST`."""
    curves = sum(len(run.curves) + len(run.steps) for run in runs)
    return min(MOST, max(FEWEST, POINTS // max(1, curves)))


def report_data(runs: Sequence[RunData]) -> dict[str, Any]:
    """Return the data of a report as plain values.

    Numbers that are not finite become the strings `NaN`, `Infinity` and `-Infinity`.
    """
    most = points_of_a_curve(runs)
    return {"report": VERSION, "differing": differing(runs), "runs": [_run(run, most) for run in runs]}


def _run(run: RunData, most: int) -> dict[str, Any]:
    plain = {name: value for name, value in vars(run).items() if name not in ("curves", "steps")}
    found: dict[str, Any] = written(plain)
    for kind in ("curves", "steps"):
        found[kind] = {name: _curve(curve, most) for name, curve in getattr(run, kind).items()}
    return found


def _curve(curve: Curve, most: int) -> dict[str, Any]:
    short = curve.reduced(most)
    return {"logged": len(curve.values), **written(asdict(short))}
