"""Cadence: a callback that asks for something whenever its trigger is due."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import Flag, TrainerControl
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from ...events.state import TrainerState
from ...events.triggers import Moment, Place, Trigger, never


@dataclass
class Cadence(Callback):
    """Raises one flag of the control when its trigger is due, at the end of a step or of an epoch, once at a step."""

    flag: ClassVar[Flag]
    """The flag it raises."""
    set_apart: ClassVar[str] = ""
    """How two of a kind are told apart, for the error that two equal ones meet."""

    trigger: Trigger
    """When."""
    _last: Moment | None = field(default=None, init=False, repr=False, compare=False)
    _wakes: float = field(default=0.0, init=False, repr=False, compare=False)

    @property
    def local(self) -> bool:  # type: ignore[override]
        """Whether the trigger looks at the clock, which differs between the processes of a run."""
        return self.trigger.clocked

    @property
    def aside(self) -> str:
        """The name of what it does beside the main one of its kind; empty for the main one."""
        return ""

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        self._last, self._wakes = None, 0.0  # what it did in an earlier run; a resumed one is given its own back
        for other in run.bus.subscribers.values():
            if other is not self and isinstance(other, Cadence) and self._doubles(other):
                raise ArgumentError(
                    f"{self!r} and {other!r} would do the same work twice: join their triggers with |{self.set_apart}."
                )

    def _doubles(self, other: Cadence) -> bool:
        same = (self.flag, self.aside) == (other.flag, other.aside)
        return same and never() not in (self.trigger, other.trigger)

    def on_epoch_begin(self) -> None:
        self._wakes = 0.0  # a run may begin, and a trigger be exchanged

    def on_step_end(self, run: Run, state: TrainerState) -> None:
        if state.global_step >= self._wakes:
            self._wakes = self.trigger.wakes(state.global_step, state.max_steps)
            self._ask(run, "step")

    def on_epoch_end(self, run: Run) -> None:
        self._ask(run, "epoch")

    @order(Stage.RELEASE)
    def on_evaluate_end(self, run: Run, control: TrainerControl) -> None:
        # An evaluation at the end of an epoch may be what ends the run, when that end was announced already.
        announced = run.position is not None and run.position.batches == 0 and run.state.global_step > 0
        if run.mode == "train" and announced and control.should_training_stop:
            self._ask(run, "epoch")

    def _ask(self, run: Run, place: Place) -> None:
        if self.local and not run.state.is_world_process_zero:
            return  # one clock counts, or a thing would be done a step later once more, by that of another process
        now = run.moment(place)
        if (self._last is None or self._last.step != now.step) and self.trigger.due(now, self._last):
            self._last = now
            run.control.request(self.flag, f"due by {self.trigger!r}")

    def state_dict(self) -> dict[str, Any]:
        return {} if self._last is None else {"last_step": self._last.step, "last_seconds": self._last.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._last = Moment("step", state["last_step"], 0.0, 0, state["last_seconds"])
