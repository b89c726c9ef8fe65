"""Metric names: the prefix `eval_`, the direction of a metric, and the error for a missing one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, nearest

Mode = Literal["min", "max"]


def full_name(metric: str) -> str:
    """Return the name of a metric with the prefix `eval_`."""
    return metric if metric.startswith("eval_") else f"eval_{metric}"


def greater_is_better(metric: str, mode: str | None) -> bool:
    """Return whether a greater value of a metric is better.

    Args:
        metric: the name of the metric.
        mode: `min` or `max`. If None, the name decides: losses, error rates and perplexities are better low.

    Raises:
        ArgumentError: for another mode.
    """
    if mode is None:
        return not metric.endswith(("loss", "error", "perplexity", "wer", "cer", "mse", "mae", "rmse"))
    if mode not in ("min", "max"):
        raise ArgumentError(f"mode={mode!r} is unknown{nearest(mode, ('min', 'max'))} Set 'min' or 'max'.")
    return mode == "max"


def value_of(metric: str, metrics: Mapping[str, Any], run: Run, reader: str) -> float | None:
    """Return the value of a metric, or None if another evaluation of the run measures it.

    Args:
        metric: the full name of the metric.
        metrics: the metrics of one evaluation.
        run: the run that the evaluation belongs to.
        reader: the callback that reads the metric, for the error.

    Raises:
        ArgumentError: if this evaluation must have the metric and has not. It lists the metrics that exist.
    """
    if metric in metrics:
        return float(metrics[metric])
    variants = (callback.variant for callback in run.bus.subscribers.values() if isinstance(callback, Callback))
    if not run.evaluates_all or any(variant and metric.startswith(f"eval_{variant}_") for variant in variants):
        return None
    raise ArgumentError(
        f"{reader} reads the metric {metric!r}, and the evaluation did not measure it{nearest(metric, metrics)} "
        f"It measured: {', '.join(metrics)}."
    )
