"""Stop when a metric stops improving, passes a limit, or is not finite."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ...events.state import TrainerState
from ..base.metric_names import (
    DEFAULT_METRIC,
    DefaultMetric,
    Mode,
    check_measured,
    full_name,
    greater_is_better,
    require_evaluations,
    value_of,
    warn_of_best_metric,
)

logger = logging.getLogger(__name__)


@dataclass
class StopRule:
    """The rule of early stopping. Call `update` with each new value. The rule does not need a trainer.

    Example:
        rule = StopRule("eval_loss", greater=False, patience=2)
        reason = rule.update(0.7)  # empty: continue
    """

    name: str
    """The name of the metric, for the reason."""
    greater: bool
    """Whether a greater value is better."""
    patience: int
    """The number of consecutive evaluations without improvement after which to stop."""
    threshold: float = 0.0
    """A value is an improvement if it is better than the best value by more than this difference."""
    baseline: float | None = None
    """The best value at the start. None: the value of the first evaluation becomes the first best value."""
    divergence: float | None = None
    """A limit. `update` returns a reason if a value is worse than this limit. None: no limit."""
    finite: bool = True
    """Whether `update` returns a reason if a value is NaN or infinite."""
    target: float | None = None
    """A goal. `update` returns a reason if a value reaches this goal or is better. None: no goal."""
    best: float | None = None
    """The best value so far; None before the first value."""
    waited: int = 0
    """The number of evaluations since the last improvement."""

    def __post_init__(self) -> None:
        if self.best is None:
            self.best = self.baseline

    def update(self, value: float) -> str:
        """Apply the rule to the value of one evaluation. Return the reason to stop, or an empty string to continue."""
        if not math.isfinite(value) and self.finite:
            return f"{self.name} is {value}"
        if self.divergence is not None and self._better(self.divergence, value):
            return f"{self.name} = {value:.6g} is worse than the limit {self.divergence:.6g}"
        improves = self._improves(value)
        if improves:
            self.best, self.waited = value, 0
        if self.target is not None and (value == self.target or self._better(value, self.target)):
            return f"{self.name} = {value:.6g} reaches the target {self.target:.6g}"
        if improves:
            return ""
        self.waited += 1
        if self.waited >= self.patience:
            times = "evaluation" if self.waited == 1 else "evaluations"
            best = "none so far" if self.best is None else f"{self.best:.6g}"
            return f"{self.name} has not improved for {self.waited} {times} (best {best})"
        return ""

    def _improves(self, value: float) -> bool:
        if self.best is None:
            return not math.isnan(value)  # no later value would be better than NaN
        return self._better(value, self.best) and abs(value - self.best) > self.threshold

    def _better(self, value: float, other: float) -> bool:
        return value > other if self.greater else value < other


@dataclass
class EarlyStopping(Callback):
    """Stops training when a metric stops improving.

    Use this callback with evaluations at regular intervals: `EarlyStopping("f1", patience=5, mode="max")`. The callback
    stores its own best value, independent of `KeepBest`. Checkpoints save this value. By default, a metric that is NaN
    or infinite stops the run immediately.

    Raises:
        ArgumentError: if `patience` is below 1, `threshold` is negative or `mode` is unknown. Also if the run makes no
            evaluations, or if no evaluation measures the metric.
    """

    previews = True

    metric: str = DEFAULT_METRIC
    """The name of the metric. The prefix `eval_` is optional. If you do not set it, and another metric chooses the best
    model, a warning names both metrics."""
    patience: int = 3
    """Training stops after this many consecutive evaluations without improvement."""
    threshold: float = 0.0
    """A value is an improvement if it is better than the best value by more than this difference. The difference has
    the unit of the metric."""
    mode: Mode | None = None
    """`min`: lower is better. `max`: higher is better. Default: `min` for names of losses, errors and perplexities,
    else `max`."""
    baseline: float | None = None
    """The best value at the start of the run. Default: the value of the first evaluation becomes the first best
    value."""
    divergence: float | None = None
    """A limit of the metric. A value that is worse than this limit stops the run immediately. Default: no limit."""
    finite: bool = True
    """Whether a value that is NaN or infinite stops the run immediately."""
    target: float | None = None
    """A goal for the metric. A value that reaches this goal, or is better, stops the run immediately. Default: no
    goal."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    rule: StopRule = field(init=False, repr=False, compare=False)
    """The object that decides whether to stop. `rule.best` is the best value of this run so far."""

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ArgumentError(f"EarlyStopping(patience={self.patience}): set a patience of 1 or more evaluations.")
        if self.threshold < 0:
            raise ArgumentError(f"EarlyStopping(threshold={self.threshold}): set a threshold of 0 or more.")
        self.metric = full_name(self.metric)
        self.rule = self._rule()

    def _rule(self) -> StopRule:
        return StopRule(
            self.metric,
            greater_is_better(self.metric, self.mode),
            self.patience,
            self.threshold,
            self.baseline,
            self.divergence,
            self.finite,
            self.target,
        )

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.rule = self._rule()  # a new run; a resumed run restores its own state later

    def on_train_begin(self, run: Run) -> None:
        require_evaluations(run, "EarlyStopping")
        check_measured(self.metric, run, "EarlyStopping")
        if isinstance(self.metric, DefaultMetric):
            warn_of_best_metric(self.metric, run, "EarlyStopping")

    def on_evaluate_end(self, run: Run, control: TrainerControl, metrics: dict[str, Any]) -> None:
        if run.mode != "train":
            return
        value = value_of(self.metric, metrics, run, "EarlyStopping")
        reason = self.rule.update(value) if value is not None else ""
        if reason:
            control.request("training_stop", reason)

    def on_train_end(self, state: TrainerState) -> None:
        if state.global_step >= state.max_steps and not any(self.metric in entry for entry in state.log_history):
            logger.warning(
                "EarlyStopping had no effect: the run made no evaluation that measures %r. Set `eval_strategy` to "
                "'steps' or 'epoch', or add `Evaluate(...)` to the callbacks.",
                self.metric,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.rule.best, "waited": self.rule.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rule.best, self.rule.waited = state["best"], state["waited"]
