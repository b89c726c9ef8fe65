"""Make the rows of a tracker. A row has all values of one step, with the names that trackers show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ...engine.evaluation.outputs import plain
from ...engine.run import Run
from .tracker import in_sections

AXIS = "train/global_step"
"""The column with the optimizer step. transformers uses the same name."""

TOTALS = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")
"""Values that a training logs once, at its end. They belong to the summary of a run, not to a curve."""


def row_of(logs: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return logged values as the columns of a row: `eval_loss` becomes `eval/loss`, `loss` becomes `train/loss`.

    The row does not contain the totals of the training, such as `train_runtime`. If the logs have only totals, the
    result is {}.
    """
    values = {in_sections(str(key)): value for key, value in logs.items() if key not in TOTALS and key != "step"}
    return {**values, AXIS: step} if values else {}


def totals_of(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the totals of the training among the logged values, such as `train_runtime`."""
    return {key: value for key, value in logs.items() if key in TOTALS}


def only_resumed(run: Run) -> bool:
    """Return whether the session resumed a training, but trained no step.

    The totals of such a session say nothing about the training.
    """
    return 0 < run.state.global_step == run.session.first_step


def merge(row: dict[str, Any], more: Mapping[str, Any]) -> bool:
    """Add columns to a row and return True.

    If the row already has one of the columns with another value, add nothing and return False.
    """
    if any(key in row and not _equal(row[key], value) for key, value in more.items()):
        return False
    row.update(more)
    return True


def rows_of_history(history: Iterable[Mapping[str, Any]], upto: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield pairs of step and row from the log history of a run, for the steps up to and including `upto`.

    All entries of a step form one row. If two entries of a step have different values in a column, the second entry
    begins another row.
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    for entry in sorted(history, key=_step_of):
        step = _step_of(entry)
        row = row_of(entry, step) if step <= upto else {}
        if row and not (rows and rows[-1][0] == step and merge(rows[-1][1], row)):
            rows.append((step, row))
    yield from rows


def settled(value: Any) -> Any:
    """Return a copy of a logged value, because the program may change the value before the row is written.

    Tensors and arrays with one element become numbers. Other tensors and arrays are copied. Dicts, lists and tuples are
    copied with their values, and tuples become lists. Any other object, such as an image, is not copied.
    """
    if isinstance(value, Mapping):
        return {name: settled(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [settled(item) for item in value]
    value = plain(value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _step_of(entry: Mapping[str, Any]) -> int:
    return int(entry.get("step", 0))


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one is other or one == other or (one != one and other != other))
    except (ValueError, RuntimeError):  # arrays and tensors of more than one value
        return False
