"""The metric that selects the best model, and whether the run loads the best model at the end."""

from __future__ import annotations

from dataclasses import dataclass

from ._base import Group, arg


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class BestModelArguments(Group):
    """The metric that selects the best model, and whether the run loads the best model at the end."""

    load_best_model_at_end: bool = arg(
        False,
        "Load the best checkpoint when training ends. `metric_for_best_model` selects the best checkpoint. Needs an "
        "`eval_strategy`.",
    )
    metric_for_best_model: str | None = arg(
        None,
        "Evaluation metric that compares models, with or without the prefix 'eval_'. None means 'loss' if the run "
        "needs a metric. A run needs a metric in two cases: the run keeps the best model, or the learning rate "
        "schedule follows a metric.",
    )
    greater_is_better: bool | None = arg(
        None,
        "Whether a larger `metric_for_best_model` is better. None: True, unless the name of the metric ends in 'loss'.",
    )
