"""Stop the run after its last planned step."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.arguments import TrainingArguments
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.state import TrainerState


@dataclass
class StopAtMaxSteps(Callback):
    """Stops training at `state.max_steps`.

    Every trainer without a `DefaultFlowCallback` has a `StopAtMaxSteps`. The argument `max_steps` sets
    `state.max_steps`. Without this argument, the run computes `state.max_steps` from `num_train_epochs` and the length
    of the data.
    """

    previews = True

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> StopAtMaxSteps:
        return cls()

    def on_train_begin(self, state: TrainerState, control: TrainerControl) -> None:
        self.on_step_end(state, control)  # a resumed run may be complete already

    def on_step_end(self, state: TrainerState, control: TrainerControl) -> None:
        if state.global_step >= state.max_steps:
            control.request("training_stop", f"all {state.max_steps} steps are done")
