"""Stop when a metric no longer improves, diverges, or is no number."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ..base.metric_names import Mode, full_name, greater_is_better, value_of


@dataclass
class StopRule:
    """Decides from one value after the other whether to stop; the decision alone, without a trainer."""

    name: str
    """The metric, for the reasons."""
    greater: bool
    """Whether greater is better."""
    patience: int
    """Evaluations without improvement after which to stop."""
    threshold: float = 0.0
    """How much better than the best a value must be to count as an improvement."""
    baseline: float | None = None
    """What must be beaten from the beginning."""
    divergence: float | None = None
    """A value worse than this stops at once."""
    finite: bool = True
    """Whether NaN or infinity stops at once."""
    best: float | None = None
    """The best value so far."""
    waited: int = 0
    """Evaluations since the last improvement."""

    def __post_init__(self) -> None:
        if self.best is None:
            self.best = self.baseline

    def update(self, value: float) -> str:
        """Take one value; return why to stop, or an empty string."""
        if not math.isfinite(value) and self.finite:
            return f"{self.name} is {value}"
        if self.divergence is not None and self._better(self.divergence, value):
            return f"{self.name} = {value:.6g} is worse than the limit {self.divergence:.6g}"
        if self._improves(value):
            self.best, self.waited = value, 0
            return ""
        self.waited += 1
        if self.waited >= self.patience:
            times = "evaluation" if self.waited == 1 else "evaluations"
            best = "none so far" if self.best is None else f"{self.best:.6g}"
            return f"{self.name} has not improved for {self.waited} {times} (best {best})"
        return ""

    def _improves(self, value: float) -> bool:
        if self.best is None:
            return not math.isnan(value)  # which nothing would ever be better than
        return self._better(value, self.best) and abs(value - self.best) > self.threshold

    def _better(self, value: float, other: float) -> bool:
        return value > other if self.greater else value < other


@dataclass
class EarlyStopping(Callback):
    """Stops training when a metric has stopped improving. Its best is its own, and survives a resume."""

    metric: str = "eval_loss"
    """The metric that is watched; the `eval_` may be left out."""
    patience: int = 3
    """Evaluations without improvement after which to stop."""
    threshold: float = 0.0
    """How much better than the best a value must be to count as an improvement, in units of the metric."""
    mode: Mode | None = None
    """Whether `min` or `max` is best; by default told by the name."""
    baseline: float | None = None
    """A value that must be beaten from the beginning."""
    divergence: float | None = None
    """A value; one that is worse stops at once."""
    finite: bool = True
    """Whether NaN or infinity stops at once."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    rule: StopRule = field(init=False, repr=False, compare=False)
    """What has been seen of this run, and the decision."""

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ArgumentError(f"EarlyStopping(patience={self.patience}): wait for at least 1 evaluation.")
        if self.threshold < 0:
            raise ArgumentError(f"EarlyStopping(threshold={self.threshold}): a threshold is not negative.")
        self.metric = full_name(self.metric)
        self.rule = self._rule()

    def _rule(self) -> StopRule:
        limits = (self.patience, self.threshold, self.baseline, self.divergence, self.finite)
        return StopRule(self.metric, greater_is_better(self.metric, self.mode), *limits)

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.rule = self._rule()  # a new run has seen nothing yet; a resumed one is given its own back

    def on_evaluate_end(self, run: Run, control: TrainerControl, metrics: dict[str, Any]) -> None:
        if run.mode != "train":
            return
        value = value_of(self.metric, metrics, run, "EarlyStopping")
        reason = self.rule.update(value) if value is not None else ""
        if reason:
            control.request("training_stop", reason)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.rule.best, "waited": self.rule.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rule.best, self.rule.waited = state["best"], state["waited"]
