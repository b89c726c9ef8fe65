"""Cadence: the base class of callbacks that raise a flag when their trigger is due."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import Flag, TrainerControl
from ...events.stages import Stage, order
from ...events.state import TrainerState
from ...events.triggers import Moment, Place, Trigger, never


@dataclass
class Cadence(Callback):
    """Base class of callbacks that raise one flag when a trigger is due.

    The trigger is checked at the end of each step and epoch, and the flag is raised at most once per step.

    `Log`, `Evaluate` and `Checkpoint` derive from it. A subclass sets `flag` and handles the event `on_<flag>_due`.
    Two instances with the same flag and variant exclude each other, unless the trigger of one is `never()`.
    """

    previews = True

    flag: ClassVar[Flag]
    """The flag that the callback raises: `log`, `evaluate` or `save`."""
    alternative: ClassVar[str] = ""
    """A second remedy for the error about two equal instances."""

    trigger: Trigger
    """When the flag is raised."""
    _last: Moment | None = field(default=None, init=False, repr=False, compare=False)
    _next_check: float = field(default=0.0, init=False, repr=False, compare=False)

    @property
    def last_due(self) -> Moment | None:
        """The moment at which the callback last raised its flag; None if it has not raised it yet."""
        return self._last

    @property
    def local(self) -> bool:  # type: ignore[override]
        """Whether the trigger reads the clock, which differs between ranks."""
        return self.trigger.clocked

    def conflict_with(self, other: Callback) -> str:
        if not isinstance(other, Cadence) or (self.flag, self.variant) != (other.flag, other.variant):
            return super().conflict_with(other)
        if never() in (self.trigger, other.trigger):
            return ""
        return f"both raise the flag {self.flag!r}. Join their triggers with |{self.alternative}."

    def replace_trigger(self, trigger: Trigger) -> None:
        """Set another trigger. It decides from the end of the next step."""
        self.trigger, self._next_check = trigger, 0.0

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._last, self._next_check = None, 0.0  # a resumed run restores its own values later

    def on_epoch_begin(self) -> None:
        self._next_check = 0.0  # the trigger may have been replaced

    def on_step_end(self, run: Run, state: TrainerState) -> None:
        if state.global_step >= self._next_check:
            self._next_check = self.trigger.wakes(state.global_step, state.max_steps)
            self._request_if_due(run, "step")

    def on_epoch_end(self, run: Run) -> None:
        self._request_if_due(run, "epoch")

    @order(Stage.RELEASE)
    def on_evaluate_end(self, run: Run, control: TrainerControl) -> None:
        # An evaluation at the end of an epoch may stop the run after `on_epoch_end` was announced.
        announced = run.position is not None and run.position.batches == 0 and run.state.global_step > 0
        if run.mode == "train" and announced and control.should_training_stop:
            self._request_if_due(run, "epoch")

    def _request_if_due(self, run: Run, place: Place) -> None:
        if self.local and not run.state.is_world_process_zero:
            return  # rank 0's clock counts alone; another clock could raise the flag again one step later
        now = run.moment(place)
        if (self._last is None or self._last.step != now.step) and self.trigger.due(now, self._last):
            self._last = now
            run.control.request(self.flag, f"due by {self.trigger!r}")

    def state_dict(self) -> dict[str, Any]:
        return {} if self._last is None else {"last_step": self._last.step, "last_seconds": self._last.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._last = Moment("step", state["last_step"], 0.0, 0, state["last_seconds"])
