"""Average the weights exponentially during training, and evaluate and save the average."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ...engine.run import Run
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from .averaged_weights import AveragedWeights
from .averaged_weights import at_least_float32 as at_least_float32


@dataclass
class EMA(AveragedWeights):
    """Averages the weights. After each step, the average becomes decay * average + (1 - decay) * weights.

    Use `EMA(decay=0.9999)` for smoother weights at the end of training. The average replaces the trained weights during
    evaluations, in the model file of checkpoints, and after training. The callback state in checkpoints has the trained
    weights, so a resumed run continues with the trained weights. The average covers floating-point parameters, and no
    buffers. The dtype of the average is float32 or wider.

    Raises:
        ArgumentError: if `decay` is outside of [0, 1), if `every` is below 1, or if the run has a second callback that
            averages the weights.
    """

    decay: float = 0.999
    """The factor of the old average at each update, in [0, 1)."""
    every: int = 1
    """The number of steps from one update of the average to the next. Default: an update after each step."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ArgumentError(f"EMA(decay={self.decay}): set a decay of at least 0 and below 1.")
        if self.every < 1:
            raise ArgumentError(f"EMA(every={self.every}): set a number of steps of 1 or more.")

    @order(Stage.PREPARE)
    def on_train_begin(self, model: nn.Module) -> None:
        self.begin_average(model)

    @order(Stage.MEASURE)
    def on_optimizer_step(self, run: Run, model: nn.Module) -> None:
        if (run.state.global_step + 1) % self.every == 0:
            self.move_average(model, 1 - self.decay)
