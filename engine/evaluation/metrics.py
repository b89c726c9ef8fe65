"""Functions that check and name the metrics of an evaluation, and make the metrics equal on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...events.errors import ArgumentError
from ..distributed.ranks import Ranks
from .outputs import not_plain, plain
from .row_slice import half_width

_SHARED_TYPES = (bool, int, float, str)
"""The types of metrics that all ranks take from rank 0, besides None. Callbacks use such metrics to decide."""


def finished_metrics(
    metrics: Any, row_losses: Any, prefix: str, *, filter_nonfinite: bool, batch_size: int | None = None
) -> dict[str, Any]:
    """Return the metrics of an evaluation as plain values, with the mean loss and with prefixed names.

    Args:
        metrics: the result of `compute_metrics`.
        row_losses: for each row, the mean loss of its batch, shape (rows,); None if the evaluation has no loss.
        prefix: start of each name, such as `eval`.
        filter_nonfinite: leave NaN and infinite losses out of the mean, if any finite loss remains.
        batch_size: number of rows of every batch except the last; None if the rows are not chosen at random. If
            `batch_size` is not None, and there are two batches or more, the result has the metric `<prefix>_loss_ci`:
            half the width of the 95 % confidence interval of the mean loss.

    Raises:
        ArgumentError: if `metrics` is not a mapping, or if a value cannot be logged, such as an array of several
            numbers.
    """
    if not isinstance(metrics, Mapping):
        raise ArgumentError(
            f"`compute_metrics` returned a {type(metrics).__name__}. Return a dict of names and numbers, such as "
            "{'accuracy': 0.9}."
        )
    values = plain(dict(metrics))
    if problems := not_plain(values):
        named = ", ".join(f"{name!r} is {kind}" for name, kind in problems.items())
        raise ArgumentError(
            f"`compute_metrics` returned metrics that logs and checkpoints cannot hold: {named}. Return numbers under "
            "text names, such as {'f1': scores.mean()}, and one metric per class: {'f1_cat': scores[0]}."
        )
    if row_losses is not None:
        finite = row_losses[np.isfinite(row_losses)] if filter_nonfinite else row_losses
        counted = finite if finite.size else row_losses
        values[f"{prefix}_loss"] = counted.mean().item()
        width = None if batch_size is None else half_width(counted, batch_size)
        if width is not None:
            values[f"{prefix}_loss_ci"] = width
    return {key if key.startswith(f"{prefix}_") else f"{prefix}_{key}": value for key, value in values.items()}


def metrics_of_first(ranks: Ranks, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics with the numbers, strings and None values of rank 0, and all other values of this rank.

    Each rank computes metrics. The metrics may differ if a rank rounds differently or draws random numbers. With equal
    numbers, callbacks decide the same on all ranks. Every rank must call this function.
    """
    if ranks.single_process:
        return metrics
    shared = {name: value for name, value in metrics.items() if value is None or isinstance(value, _SHARED_TYPES)}
    of_first: dict[str, Any] = ranks.broadcast_object(shared)
    return {**{name: value for name, value in metrics.items() if name not in shared}, **of_first}
