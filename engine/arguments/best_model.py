"""Which model is the best one, and whether the run ends with it."""

from __future__ import annotations

from dataclasses import dataclass

from ._base import Group, arg


@dataclass(kw_only=True)
class BestModelArguments(Group):
    """Which model is the best one, and whether the run ends with it."""

    load_best_model_at_end: bool = arg(False, "Whether the run ends with the best model it saw, rather than the last.")
    metric_for_best_model: str | None = arg(
        None, "Metric of the evaluations that says which model is better, with or without 'eval_'; 'loss' if left out."
    )
    greater_is_better: bool | None = arg(
        None, "Whether larger values of that metric are better; left out, they are unless its name ends in 'loss'."
    )
