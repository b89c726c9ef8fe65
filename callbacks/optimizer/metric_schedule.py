"""Step the learning-rate schedules that need a metric, after each evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.optim.schedules import METRIC_SCHEDULES, needs_metric
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage
from ..base.metric_names import DEFAULT_METRIC, DefaultMetric, check_measured, full_name, value_of, warn_of_best_metric


@dataclass
class MetricSchedule(Callback):
    """Calls `step(metric)` of a schedule that needs a metric, such as `reduce_lr_on_plateau`, after evaluations.

    Set `lr_scheduler_type="reduce_lr_on_plateau"` or `lr_scheduler_type="greedy"` in the arguments to use the callback.
    If you pass your own `ReduceLROnPlateau`, or build it in an override of `create_scheduler`, the trainer adds the
    callback. The metric is then `metric_for_best_model`. If this argument is None, the metric is `eval_loss`. For
    another metric, add `MetricSchedule("f1")` to the callbacks. If the schedule needs no metric, the callback does
    nothing. The callback ignores evaluations before the first step and evaluations outside of training. If a
    handler evaluates at a step at which the run also evaluates, the callback uses only the first of the two.

    Raises:
        ArgumentError: if no evaluation measures the metric.
    """

    stage = Stage.MEASURE
    previews = True

    metric: str = DEFAULT_METRIC
    """The metric. The prefix `eval_` is optional. Your own `MetricSchedule()` reads
    `eval_loss`. If another metric chooses the best model, a warning then names both metrics."""

    def __post_init__(self) -> None:
        self.metric = full_name(self.metric)
        self._stepped = 0  # the training step after which the schedule last moved
        self._by_handler = 0  # the same, for evaluations that a handler makes

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> MetricSchedule | None:
        return cls(args.metric_for_best_model or "loss") if args.lr_scheduler_type in METRIC_SCHEDULES else None

    @classmethod
    def for_schedule(
        cls, args: TrainingArguments, schedule: Any, attached: Iterable[object] = ()
    ) -> MetricSchedule | None:
        """Build the callback for a schedule of the program, if no other `MetricSchedule` steps it.

        Args:
            args: the training arguments.
            schedule: the schedule, or None.
            attached: the callbacks of the trainer.

        Returns:
            The callback. None if the schedule needs no metric. Also None if `attached` contains a `MetricSchedule`, or
            if `from_arguments(args)` returns one.
        """
        found = any(isinstance(each, cls) for each in attached) or cls.from_arguments(args) is not None
        return cls(args.metric_for_best_model or DEFAULT_METRIC) if needs_metric(schedule) and not found else None

    def on_train_begin(self, run: Run, lr_scheduler: Any) -> None:
        self._stepped = self._by_handler = 0
        if needs_metric(lr_scheduler):
            check_measured(self.metric, run, "MetricSchedule")
            if isinstance(self.metric, DefaultMetric):
                warn_of_best_metric(self.metric, run, "MetricSchedule")

    def on_evaluate_end(self, run: Run, lr_scheduler: Any, metrics: dict[str, Any]) -> None:
        # An evaluation before the first step measures no training. With an evaluation in a handler, the same weights
        # would count twice. Two evaluations of the run itself at one step count twice, as in transformers.
        step, by_run = run.state.global_step, run.evaluation.repeats
        counted = step == (self._by_handler if by_run else self._stepped)
        if run.mode == "train" and step > 0 and not counted and needs_metric(lr_scheduler):
            value = value_of(self.metric, metrics, run, "MetricSchedule")
            if value is not None:
                self._stepped, self._by_handler = step, self._by_handler if by_run else step
                lr_scheduler.step(value)
