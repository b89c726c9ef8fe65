"""The metric that selects the best model, and whether the run loads it at the end."""

from __future__ import annotations

from dataclasses import dataclass

from ._base import Group, arg


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class BestModelArguments(Group):
    """The metric that selects the best model, and whether the run loads it at the end."""

    load_best_model_at_end: bool = arg(
        False,
        "Load the best checkpoint when training ends. `metric_for_best_model` selects it. Needs an `eval_strategy`.",
    )
    metric_for_best_model: str | None = arg(
        None,
        "Evaluation metric that compares models, with or without the prefix 'eval_'. None: 'loss', if the run "
        "needs a metric. The run needs a metric to keep the best model, and for a schedule that follows a metric.",
    )
    greater_is_better: bool | None = arg(
        None,
        "Whether a larger `metric_for_best_model` is better. None: True, unless the name of the metric ends in 'loss'.",
    )
