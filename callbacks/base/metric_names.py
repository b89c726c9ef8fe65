"""Metrics by name: how users name them, which way is better, and what to say when one is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...engine.run import Run
from ...events.errors import ArgumentError, nearest

Mode = Literal["min", "max"]


def full_name(metric: str) -> str:
    """Return a metric's name with the `eval_` that evaluations put before it."""
    return metric if metric.startswith("eval_") else f"eval_{metric}"


def greater_is_better(metric: str, mode: str | None) -> bool:
    """Return the direction of a metric: by its mode, or by its name, losses and the like being better low.

    Raises:
        ArgumentError: for a mode other than `min` and `max`.
    """
    if mode is None:
        return not metric.endswith(("loss", "error", "perplexity", "wer", "cer", "mse", "mae", "rmse"))
    if mode not in ("min", "max"):
        raise ArgumentError(f"mode={mode!r}{nearest(mode, ('min', 'max'))} It is 'min' or 'max'.")
    return mode == "max"


def value_of(metric: str, metrics: Mapping[str, Any], run: Run, asker: str) -> float | None:
    """Return a metric of an evaluation; None if it is another evaluation of the run that measures it.

    Args:
        metric: its full name.
        metrics: what the evaluation measured.
        run: the run that the evaluation belongs to.
        asker: who asks, for the error.

    Raises:
        ArgumentError: if it must be there and is not, naming those that are.
    """
    if metric in metrics:
        return float(metrics[metric])
    asides = (getattr(callback, "aside", "") for callback in run.bus.subscribers.values())
    if not run.evaluates_all or any(aside and metric.startswith(f"eval_{aside}_") for aside in asides):
        return None
    raise ArgumentError(
        f"{asker} watches {metric!r}, which the evaluation did not measure{nearest(metric, metrics)} "
        f"It measured: {', '.join(metrics)}."
    )
