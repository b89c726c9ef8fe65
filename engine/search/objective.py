"""The default objective of a hyperparameter search: a number that is computed from the metrics of an evaluation."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..evaluation.metric_names import measures_model

logger = logging.getLogger(__name__)


def default_compute_objective(metrics: dict[str, Any]) -> Any:
    """Return the evaluation loss if it is the only metric, otherwise the sum of the other metrics.

    Args:
        metrics: as `Trainer.evaluate` returns them. The epoch, speed metrics and the confidence interval of
            `eval_rows` do not count.
    """
    summed = summed_metrics(metrics)
    return sum(summed.values()) if summed else metrics.get("eval_loss")


def summed_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that `default_compute_objective` adds up; an empty dict if it returns the loss."""
    return {name: value for name, value in metrics.items() if name != "eval_loss" and measures_model(name)}


@dataclass
class MinimizedObjective:
    """The default objective of a search that minimizes. It warns once if it adds up metrics that are not losses.

    As in transformers, `minimize` is the default direction. A search that minimizes a metric such as the accuracy
    returns the worst trial.
    """

    _warned: bool = False

    def __call__(self, metrics: dict[str, Any]) -> Any:
        """Return the value that the search minimizes, from the metrics that `Trainer.evaluate` returns."""
        summed = [name for name in summed_metrics(metrics) if not name.endswith("loss")]
        if summed and not self._warned:
            self._warned = True
            logger.warning(
                "The search minimizes a sum with these metrics: %s. If larger values are better, pass "
                "`direction='maximize'`. For another objective, pass `compute_objective`.",
                ", ".join(summed),
            )
        return default_compute_objective(metrics)
