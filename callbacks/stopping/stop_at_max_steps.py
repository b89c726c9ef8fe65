"""End the run when its planned steps are done."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.arguments import TrainingArguments
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.state import TrainerState


@dataclass
class StopAtMaxSteps(Callback):
    """Asks to stop at `state.max_steps`, which the plan of the run sets from its arguments."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> StopAtMaxSteps:
        return cls()

    def on_train_begin(self, state: TrainerState, control: TrainerControl) -> None:
        self.on_step_end(state, control)  # a resumed run may be complete

    def on_step_end(self, state: TrainerState, control: TrainerControl) -> None:
        if state.global_step >= state.max_steps:
            control.request("training_stop", f"all {state.max_steps} steps are done")
