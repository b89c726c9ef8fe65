"""Collect the step times of all ranks at the end of a training."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.api.costs.read import medians_of
from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage


@dataclass
class AccountTime(Callback):
    """At the end of training, collects the median step times of all ranks, for `trainer.costs()`.

    Every trainer has this callback. The callback adds no time to the steps.
    """

    stage = Stage.PREPARE

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> AccountTime:
        return cls()

    def on_train_end(self, run: Run) -> None:
        timeline = run.bus.timeline
        timeline.end_step()
        if not run.ranks.single_process:
            timeline.ranks = run.ranks.gather_objects(medians_of(timeline))
