"""Make the rows of a tracker. A row has all values of one step, with the names that trackers show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .tracker import in_sections

AXIS = "train/global_step"
"""The column with the optimizer step. transformers uses the same name."""

TOTALS = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")
"""Values that a training logs once, at its end. They belong to the summary of a run, not to a curve."""


def row_of(logs: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return logged values as the columns of a row: `eval_loss` becomes `eval/loss`, `loss` becomes `train/loss`."""
    values = {in_sections(str(key)): value for key, value in logs.items() if key not in TOTALS and key != "step"}
    return {**values, AXIS: step} if values else {}


def totals_of(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that belong to the summary of a run."""
    return {key: value for key, value in logs.items() if key in TOTALS}


def merge(row: dict[str, Any], more: Mapping[str, Any]) -> bool:
    """Add columns to a row and return True.

    If the row already has one of the columns with another value, add nothing and return False.
    """
    if any(key in row and not _equal(row[key], value) for key, value in more.items()):
        return False
    row.update(more)
    return True


def rows_of_history(history: Iterable[Mapping[str, Any]], upto: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield pairs of step and row from the log history of a run, up to a given step. Each step has one row."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in history:
        step = int(entry.get("step", 0))
        if step <= upto and (row := row_of(entry, step)):
            rows.setdefault(step, {}).update(row)
    yield from sorted(rows.items())


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one is other or one == other or (one != one and other != other))
    except (ValueError, RuntimeError):  # arrays and tensors of more than one value
        return False
