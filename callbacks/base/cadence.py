"""Cadence: the base class of callbacks that raise a flag when their trigger is due."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from ...engine.run import Run
from ...events.bus import Handle
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ...events.flags import Flag
from ...events.stages import Stage, order
from ...events.state import TrainerState
from ...events.trigger_fields import check_triggers
from ...events.trigger_kinds import EveryShare, EverySteps, alternatives
from ...events.triggers import Moment, Place, Trigger, every, never

INTERVALS: dict[str, str] = {"log": "logging_steps", "evaluate": "eval_steps", "save": "save_steps"}
"""Flag -> the attribute of the state with the interval in steps. Handlers may set this attribute."""


@dataclass
class Cadence(Callback):
    """Base class of callbacks that raise one flag when a trigger is due.

    The callback checks the trigger at the end of each step and epoch, and raises the flag at most once per step.

    `Log`, `Evaluate` and `Checkpoint` are subclasses. A subclass sets `flag` and handles the event `on_<flag>_due`. A
    run can have two instances with the same flag and variant only if one of their triggers is `never()`. The variant is
    the name of an additional instance, such as the prefix of a second `Log`.
    """

    previews = True

    flag: ClassVar[Flag]
    """The flag that the callback raises: `log`, `evaluate` or `save`."""
    alternative: ClassVar[str] = ""
    """The end of the error about two instances that exclude each other: a second way to fix the error."""

    trigger: Trigger
    """When to raise the flag."""
    _last: Moment | None = field(default=None, init=False, repr=False, compare=False)
    _next_check: float = field(default=0.0, init=False, repr=False, compare=False)
    _cost: float = field(default=math.inf, init=False, repr=False, compare=False)
    """Duration in seconds of the last log, evaluation or save that the flag requested; infinity if unknown."""
    _setting: str = field(default="", init=False, repr=False, compare=False)
    """The name in `INTERVALS` of the attribute of the state that this callback follows; empty if there is none."""
    _interval: float = field(default=0.0, init=False, repr=False, compare=False)
    """The last known interval in the state, such as `state.eval_steps`."""
    _former: Trigger | None = field(default=None, init=False, repr=False, compare=False)
    """The trigger before a handler set the interval in the state; None if no handler did."""
    _timers: list[Handle] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_triggers(self, priced=True)

    @property
    def last_due(self) -> Moment | None:
        """The moment at which the callback last raised its flag; None if it has not raised the flag yet."""
        return self._last

    @property
    def local(self) -> bool:  # type: ignore[override]
        """Whether the trigger reads the clock. If so, only rank 0 checks the trigger, because clocks differ."""
        return self.trigger.clocked

    def conflict_with(self, other: Callback) -> str:
        if not isinstance(other, Cadence) or (self.flag, self.variant) != (other.flag, other.variant):
            return super().conflict_with(other)
        if never() in (self.trigger, other.trigger):
            return ""
        return f"both raise the flag {self.flag!r}. Join their triggers with |{self.alternative}."

    def replace_trigger(self, trigger: Trigger) -> None:
        """Set another trigger. The new trigger has effect from the next end of a step or epoch.

        Raises:
            ArgumentError: if `trigger` is not a trigger. Also if `trigger` contains `every("auto")`, and the current
                trigger does not. A callback without `every("auto")` does not measure the cost of its work.
        """
        if not isinstance(trigger, Trigger):
            raise ArgumentError(f"{trigger!r} is not a trigger. Pass one, such as every(500).")
        if trigger.priced and not self.trigger.priced:
            raise ArgumentError(f"{trigger!r} cannot be set while a run measures no cost. Pass it to the callback.")
        self.trigger, self._next_check, self._former = trigger, 0.0, None

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._last, self._next_check = None, 0.0  # a resumed run restores its own values later
            self._cost = math.inf
            self.trigger, self._former = self._former or self.trigger, None
            self._setting = INTERVALS.get(self.flag, "")
            self._interval = getattr(run.state, self._setting) if self._setting else 0.0
            self._stop_timers()
            if self.trigger.priced:
                self._time_work(run)

    def on_close(self, run: Run) -> None:
        self._stop_timers()

    def on_epoch_begin(self) -> None:
        self._next_check = 0.0  # the trigger may have been replaced

    def on_step_end(self, run: Run, state: TrainerState) -> None:
        if self._setting and getattr(state, self._setting) != self._interval:
            self._follow(getattr(state, self._setting))
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

    def _follow(self, interval: float) -> None:
        """Use the interval that a handler set in the state, until the training ends.

        The method does nothing for an additional callback, which has a `variant`. It also does nothing if the trigger
        has no interval in steps.
        """
        self._interval = interval
        parts = alternatives(self.trigger)
        if self.variant or not any(isinstance(part, (EverySteps, EveryShare)) for part in parts):
            return
        if not isinstance(interval, (int, float)) or not interval > 0:
            raise ArgumentError(f"A handler set `state.{self._setting}` to {interval!r}. Set it to a number above 0.")
        former = self._former or self.trigger
        changed = [
            every(interval, after=part.after) if isinstance(part, (EverySteps, EveryShare)) else part for part in parts
        ]
        self.replace_trigger(reduce(or_, changed))
        self._former = former

    def _request_if_due(self, run: Run, place: Place) -> None:
        if self.local and not run.state.is_world_process_zero:
            return  # rank 0's clock counts alone; another clock could raise the flag again one step later
        now = run.moment(place)
        if self.trigger.priced:
            now = now._replace(cost=self._cost_of_last())
        if self.trigger.due_again(now, self._last):
            self._last = now
            run.control.request(self.flag, f"due by {self.trigger!r}")

    def _cost_of_last(self) -> float:
        """Return the seconds of the last work that the attribute `flag` requested; infinity if unknown."""
        return self._cost

    def _time_work(self, run: Run) -> None:
        """Attach two handlers that store the seconds of the work event, such as `on_save_due`, in `self._cost`."""
        began = 0.0

        def begin() -> None:
            nonlocal began
            began = run.clock()

        def end() -> None:
            self._cost = run.clock() - began or math.inf  # the clock of a preview stands still

        for work, stage in ((begin, Stage.PREPARE), (end, Stage.RELEASE)):
            name = f"{type(self).__name__}.{work.__name__}"
            self._timers.append(run.bus.on(f"on_{self.flag}_due", work, stage=stage, id=name))

    def _stop_timers(self) -> None:
        timers, self._timers = self._timers, []
        for stop in timers:
            stop()

    def state_dict(self) -> dict[str, Any]:
        if self._last is None:
            return {}
        cost = self._cost_of_last()
        known = {} if cost == math.inf else {"last_cost": cost}
        return {"last_step": self._last.step, "last_seconds": self._last.seconds, **known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._cost = state.get("last_cost", math.inf)
            if self._cost < math.inf or not self.trigger.priced:  # else the work is due soon, and measured
                self._last = Moment("step", state["last_step"], 0.0, 0, state["last_seconds"])
