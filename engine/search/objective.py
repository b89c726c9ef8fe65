"""The default objective of a hyperparameter search, and the choice of the best trial by its objective."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..evaluation.metric_names import measures_model

logger = logging.getLogger(__name__)

NOT_A_NUMBER = (
    "The search has no best trial, because the objective of each completed trial is NaN. Lower the learning rates of "
    "the space, or correct `compute_objective`."
)
"""The text of the error of a search in which each objective is NaN."""


def default_compute_objective(metrics: dict[str, Any]) -> Any:
    """Return the evaluation loss if it is the only metric, otherwise the sum of the other metrics.

    Args:
        metrics: as `Trainer.evaluate` returns them. The function ignores `epoch`, and all names that end with
            `_runtime`, `_per_second` or `_loss_ci`.
    """
    summed = summed_metrics(metrics)
    return sum(summed.values()) if summed else metrics.get("eval_loss")


def summed_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that `default_compute_objective` adds up. If there are none, the objective is `eval_loss`."""
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


class Judged(Protocol):
    """A trial with one objective, such as a `BestRun`."""

    @property
    def objective(self) -> Any:
        """The value that the search optimizes, for this trial."""


J = TypeVar("J", bound=Judged)


def best_of(trials: Iterable[J], direction: str) -> J | None:
    """Return the trial with the best objective; None if each objective is NaN.

    Args:
        trials: the completed trials.
        direction: `minimize` or `maximize`.
    """
    # Leave out NaN: `min` and `max` return a NaN that comes first, because no number is less or greater than NaN.
    compared = [trial for trial in trials if trial.objective == trial.objective]
    return (min if direction == "minimize" else max)(compared, key=lambda trial: trial.objective, default=None)
