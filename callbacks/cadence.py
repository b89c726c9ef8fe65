"""Cadence: a callback that asks for something whenever its trigger is due."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..engine.run import Run
from ..events.callback import Callback
from ..events.control import TrainerControl
from ..events.state import TrainerState
from ..events.triggers import Moment, Trigger


@dataclass
class Cadence(Callback):
    """Raises one flag of the control when its trigger is due, at the end of a step or of an epoch."""

    flag: ClassVar[str]
    """The flag it raises."""

    trigger: Trigger
    """When."""
    _last: Moment | None = field(default=None, init=False, repr=False, compare=False)
    _wakes: float = field(default=0.0, init=False, repr=False, compare=False)

    @property
    def local(self) -> bool:  # type: ignore[override]
        """Whether the trigger looks at the clock, which differs between the processes of a run."""
        return self.trigger.clocked

    def on_epoch_begin(self) -> None:
        self._wakes = 0.0  # a run may begin, and a trigger be exchanged

    def on_step_end(self, run: Run, state: TrainerState) -> None:
        if state.global_step >= self._wakes:
            self._wakes = self.trigger.wakes(state.global_step, state.max_steps)
            self._ask(run.moment("step"), run.control)

    def on_epoch_end(self, run: Run) -> None:
        self._ask(run.moment("epoch"), run.control)

    def _ask(self, now: Moment, control: TrainerControl) -> None:
        if self.trigger.due(now, self._last):
            self._last = now
            control.request(self.flag, f"due by {self.trigger!r}")

    def state_dict(self) -> dict[str, Any]:
        return {} if self._last is None else {"last_step": self._last.step, "last_seconds": self._last.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._last = Moment("step", state["last_step"], 0.0, 0, state["last_seconds"])
