"""Stop training, with a checkpoint, before a time limit."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.arguments import TrainingArguments
from ...engine.arguments.duration import seconds_of
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.control import TrainerControl
from ...events.stages import Stage, order


@dataclass
class StopAtTime(Callback):
    """Stops training early enough to save a checkpoint before a time limit, such as the limit of a cluster job.

    Set `max_time="11h30min"`, or add `StopAtTime("11h30min")` to the callbacks. The callback stops training when the
    remaining time is at most 2 * (time of the slowest step + time of the slowest save). If the run saves checkpoints,
    the callback also requests a checkpoint.

    Raises:
        ArgumentError: if `max_time` is not a number of seconds above 0 or a text such as `90min`.
    """

    local = True
    previews = True
    capabilities = frozenset({Capability.INTERRUPTS})
    arguments = ("max_time",)

    max_time: float | str = "1h"
    """The time limit of one session, in seconds or as text such as `90min` or `1h30min`. In each session, the time
    starts at 0."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _end: float = field(default=0.0, init=False, repr=False, compare=False)
    _began: float = field(default=0.0, init=False, repr=False, compare=False)
    _slowest_step: float = field(default=0.0, init=False, repr=False, compare=False)
    _slowest_save: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seconds_of(self.max_time)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> StopAtTime | None:
        return None if args.max_time is None else cls(args.max_time)

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        self._began = run.clock()
        self._end = self._began + seconds_of(self.max_time)
        self._slowest_step = self._slowest_save = 0.0

    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        now = run.clock()
        self._slowest_step = max(self._slowest_step, now - self._began)
        self._began = now
        if now + 2 * (self._slowest_step + self._slowest_save) >= self._end:
            reason = f"max_time={self.max_time!r} is nearly up"
            control.request("training_stop", reason)
            if run.saves:
                control.request("save", reason)

    @order(Stage.PREPARE)
    def on_save_begin(self, run: Run) -> None:
        self._began = run.clock()

    @order(Stage.RELEASE)
    def on_snapshot(self, run: Run) -> None:
        now = run.clock()
        self._slowest_save = max(self._slowest_save, now - self._began)
        self._began = now
