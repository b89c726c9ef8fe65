"""Average the weights after the evaluation stops improving. The averaging itself is a base class of trainbus."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from trainbus import Run, Stage, order
from trainbus.callbacks.model.averaged_weights import AveragedWeights


def is_plateau(values: list[float], patience: int, least: float) -> bool:
    """Return whether the values no longer fall.

    They still fall if one of the last `patience` values is at least `least` below all values before these.
    """
    if len(values) <= patience:
        return False
    return min(values[-patience:]) > min(values[:-patience]) - least


@dataclass
class AverageAtPlateau(AveragedWeights):
    """Averages the weights of all steps after the evaluation loss stopped improving.

    The average replaces the weights during evaluations, in checkpoints, and at the end of the training.
    """

    patience: int = 3
    """The evaluations without improvement that make a plateau."""
    least: float = 1e-3
    """The smallest improvement that counts."""
    metric: str = "eval_loss"
    """The metric. Smaller is better."""
    values: list[float] = field(default_factory=list, init=False, compare=False)
    """The values of the metric up to the plateau."""
    averaged: int = field(default=0, init=False, compare=False)
    """The number of averaged steps; 0 before the plateau."""

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        if run.mode == "train":
            self.values, self.averaged = [], 0

    def on_evaluate(self, run: Run, model: nn.Module, metrics: dict[str, Any]) -> None:
        if run.mode != "train" or self.averaged or self.metric not in metrics:
            return
        self.values.append(float(metrics[self.metric]))
        if is_plateau(self.values, self.patience, self.least):
            self.averaged = 1
            self.begin_average(model)

    @order(Stage.PREPARE)
    def on_optimizer_step(self, model: nn.Module) -> None:
        if self.averaged:
            self.averaged += 1
            self.move_average(model, 1 / self.averaged)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "values": self.values, "averaged": self.averaged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.values, self.averaged = list(state["values"]), state["averaged"]
