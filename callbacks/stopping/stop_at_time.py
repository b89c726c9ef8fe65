"""Stop training, with a checkpoint, before a time limit."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.arguments import TrainingArguments
from ...engine.arguments.duration import seconds_of
from ...engine.checkpoint.protocols import WritesLater
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

    The time of a step includes logs and evaluations after the step. The time of a save ends when the checkpoint is on
    disk, also with `async_save=True`. If a `RemoteStore` copies the checkpoint, the time of a save includes the copy.
    Before the first save of a run, the callback does not know this time. So save at least once before the limit.

    Raises:
        ArgumentError: if `max_time` is not a number of seconds above 0 or a text such as `90min`.
    """

    local = True
    previews = True
    capabilities = frozenset({Capability.INTERRUPTS})
    arguments = ("max_time",)

    max_time: float | str = "1h"
    """The time limit of one session, in seconds or as text such as `90min` or `1h30min`. In each session, the time
    starts at 0. It includes the loading of the checkpoint from which a session resumes."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _end: float = field(default=0.0, init=False, repr=False, compare=False)
    _last_check: float = field(default=0.0, init=False, repr=False, compare=False)
    _save_began: float = field(default=0.0, init=False, repr=False, compare=False)
    _in_saves: float = field(default=0.0, init=False, repr=False, compare=False)
    """The seconds between the last check and now in which the training waited for a save."""
    _slowest_step: float = field(default=0.0, init=False, repr=False, compare=False)
    _slowest_save: float = field(default=0.0, init=False, repr=False, compare=False)
    """The longest time in seconds that the training waited for a save. The time of the threads is not included."""
    _threads: list[WritesLater] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seconds_of(self.max_time)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> StopAtTime | None:
        return None if args.max_time is None else cls(args.max_time)

    @order(Stage.PREPARE)
    def on_setup(self, run: Run) -> None:
        # Before `on_train_begin`, a run wraps the model and loads the checkpoint that it resumes from.
        if run.mode == "train":
            self._end = run.clock() + seconds_of(self.max_time)

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        self._last_check = run.clock()
        self._in_saves = self._slowest_step = self._slowest_save = 0.0
        self._threads = [each for each in run.bus.subscribers.values() if isinstance(each, WritesLater)]

    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        now = run.clock()
        self._slowest_step = max(self._slowest_step, now - self._last_check - self._in_saves)
        self._last_check, self._in_saves = now, 0.0
        # The last checkpoint may have to wait for a write that runs now. The factor 2 includes this wait.
        save = self._slowest_save + sum(each.slowest_write for each in self._threads)
        if now + 2 * (self._slowest_step + save) >= self._end:
            reason = f"max_time={self.max_time!r} is nearly up"
            control.request("training_stop", reason)
            if run.saves:
                control.request("save", reason)

    def on_close(self) -> None:
        self._threads = []

    @order(Stage.PREPARE)
    def on_save_begin(self, run: Run) -> None:
        self._save_began = run.clock()

    @order(Stage.RELEASE)
    def on_snapshot(self, run: Run) -> None:
        waited = run.clock() - self._save_began
        self._in_saves += waited
        self._slowest_save = max(self._slowest_save, waited)
