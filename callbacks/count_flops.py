"""Count the floating-point operations of the training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..engine.arguments import TrainingArguments
from ..engine.evaluation import main_input
from ..engine.run import Run
from ..events.bus import Handle
from ..events.callback import Callback
from ..events.stages import Stage


@dataclass
class CountFlops(Callback):
    """Adds 6 operations per weight and input element to `state.total_flos`, for models that can count their weights.

    Two for the forward pass and four for the backward pass, embeddings left out (Kaplan et al., arXiv:2001.08361).
    """

    stage = Stage.MEASURE

    _counting: Handle | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> CountFlops:
        return cls()

    def on_train_begin(self, run: Run) -> None:
        model: Any = run.model
        if not hasattr(model, "num_parameters"):
            return
        weights = model.num_parameters(exclude_embeddings=True)

        def count(batch: Any) -> None:
            inputs = main_input(model, batch)
            run.state.total_flos += float(6 * inputs.numel() * weights) if inputs is not None else 0.0

        # Only now, so that a model that cannot count costs nothing.
        self._counting = run.bus.on("on_batch", count, stage=Stage.MEASURE, id="CountFlops.count")

    def on_close(self) -> None:
        counting, self._counting = self._counting, None
        if counting is not None:
            counting()
