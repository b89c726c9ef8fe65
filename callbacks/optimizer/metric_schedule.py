"""Move a learning-rate schedule that follows a metric, after each evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.optim.schedules import METRIC_SCHEDULES, needs_metric
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage
from ..base.metric_names import full_name, value_of


@dataclass
class MetricSchedule(Callback):
    """Steps `reduce_lr_on_plateau`, `greedy` and the like with the metric they follow."""

    stage = Stage.MEASURE

    metric: str = "eval_loss"
    """The metric; the `eval_` may be left out."""

    def __post_init__(self) -> None:
        self.metric = full_name(self.metric)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> MetricSchedule | None:
        return cls(args.metric_for_best_model or "loss") if args.lr_scheduler_type in METRIC_SCHEDULES else None

    def on_evaluate_end(self, run: Run, lr_scheduler: Any, metrics: dict[str, Any]) -> None:
        # An evaluation before the first step measures no training, so it moves nothing.
        if run.mode == "train" and run.state.global_step > 0 and needs_metric(lr_scheduler):
            value = value_of(self.metric, metrics, run, "MetricSchedule")
            if value is not None:
                lr_scheduler.step(value)
