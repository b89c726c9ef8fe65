"""Count the floating-point operations of the training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..engine.arguments import TrainingArguments
from ..engine.evaluation import main_input
from ..engine.run import Run
from ..events.callback import Callback
from ..events.stages import Stage


@dataclass
class CountFlops(Callback):
    """Adds 6 operations per weight and input element to `state.total_flos`, for models that can count their weights.

    Two for the forward pass and four for the backward pass, embeddings left out (Kaplan et al., arXiv:2001.08361).
    """

    stage = Stage.MEASURE

    _weights: int = field(default=0, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> CountFlops:
        return cls()

    def on_train_begin(self, run: Run) -> None:
        model: Any = run.model
        self._weights = model.num_parameters(exclude_embeddings=True) if hasattr(model, "num_parameters") else 0

    def on_batch(self, run: Run, batch: Any) -> None:
        if self._weights:
            inputs = main_input(run.model, batch)
            run.state.total_flos += float(6 * inputs.numel() * self._weights) if inputs is not None else 0.0
