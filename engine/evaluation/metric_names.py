"""What the name of a metric says: whether the metric measures the quality of the model, and which values are better.

For example, `eval_loss` measures the quality of the model, and lower values are better. `eval_runtime` does not.
"""

from __future__ import annotations

import re
from typing import Literal

from ...events.errors import ArgumentError, nearest

Mode = Literal["min", "max"]

SPEED = ("_runtime", "_per_second")
"""Suffixes of the names of metrics that measure speed, not the quality of the model."""

INTERVAL = "_loss_ci"
"""The suffix of the confidence interval of a loss."""

_LOWER_IS_BETTER = re.compile(r"(loss|error|perplexity|mse|mae|(^|[^a-z])(wer|cer|ppl|nll))$", re.IGNORECASE)
"""Names of metrics for which a smaller value is better. `wer` and `cer` must be whole words, so `eval_answer` and
`eval_f1_cancer` do not match."""


def measures_model(metric: str) -> bool:
    """Return whether a metric measures the quality of the model.

    False for the epoch, the speed, and the confidence interval of a loss.
    """
    return metric != "epoch" and not metric.endswith((*SPEED, INTERVAL))


def greater_is_better(metric: str, mode: str | None = None) -> bool:
    """Return whether a greater value of a metric is better.

    Args:
        metric: the name of the metric.
        mode: `min` or `max`. None: lower is better if the name ends with `loss`, `error`, `perplexity`, `mse` or `mae`,
            or with one of the words `wer`, `cer`, `ppl` and `nll`. Upper and lower case are equal.

    Raises:
        ArgumentError: for another mode.
    """
    if mode is None:
        return _LOWER_IS_BETTER.search(metric) is None
    if mode not in ("min", "max"):
        raise ArgumentError(f"mode={mode!r} is unknown{nearest(mode, ('min', 'max'))} Set 'min' or 'max'.")
    return mode == "max"


def improves(value: float, best: float | None, greater: bool) -> bool:
    """Return whether a value is better than the best value so far. NaN is never better.

    Args:
        value: the new value.
        best: the best value so far. None or NaN: any value except NaN is better. The state of another library may have
            the best value NaN.
        greater: whether a greater value is better.
    """
    if value != value:
        return False
    return best is None or best != best or (value > best if greater else value < best)
