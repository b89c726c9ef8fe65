"""Stop training, with a checkpoint, before a time limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ...engine.api.publishing import PushesSaves
from ...engine.arguments import TrainingArguments
from ...engine.arguments.duration import seconds_of
from ...engine.checkpoint.protocols import WritesLater
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.control import TrainerControl
from ...events.stages import Stage, order
from ..flow.checkpoint import Checkpoint

WRITE_RATE = 200e6
"""The bytes per second at which a checkpoint is written, copied or pushed, until the callback has measured a save."""


@dataclass
class StopAtTime(Callback):
    """Stops training early enough to save a checkpoint before a time limit, such as the limit of a cluster job.

    Set `max_time="11h30min"`, or add `StopAtTime("11h30min")` to the callbacks. The callback stops training when the
    remaining time is at most 2 * (time of the slowest step + time of the slowest save). If the run saves checkpoints,
    the callback also requests a checkpoint.

    The time of a step includes logs and evaluations after the step. The time of a save ends when the checkpoint is on
    disk, also with `async_save=True`. The end of a training waits for the copies of a `RemoteStore` and the pushes of
    `PushToHub`. So the time of a save includes them.

    Until a session has measured a save, a copy or a push, the callback reserves `first_save` for each of them. By
    default, this is the time to write the weights and the states of Adam at 200 MB per second: 35 seconds for a model
    with 580 million float32 weights. So a session that has not saved yet also ends in time.

    Raises:
        ArgumentError: if `max_time` is not a number of seconds above 0 or a text such as `90min`. The same applies to
            `first_save`, which may also be 0.
    """

    local = True
    previews = True
    capabilities = frozenset({Capability.INTERRUPTS})
    arguments = ("max_time",)

    max_time: float | str = "1h"
    """The time limit of one session, in seconds or as text such as `90min` or `1h30min`. In each session, the time
    starts at 0. It includes the loading of the checkpoint from which a session resumes."""
    first_save: float | str | None = None
    """The time to reserve for a save that the session has not measured yet, in seconds or as text such as `5min`. It
    also applies to a copy to a store and to a push to a hub. None: an estimate from the size of the model."""
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
    _saves: int = field(default=0, init=False, repr=False, compare=False)
    """The number of saves of this session."""
    _expected: float = field(default=0.0, init=False, repr=False, compare=False)
    """The seconds to reserve for a save, a copy or a push that is not measured yet."""
    _writers: list[WritesLater] = field(default_factory=list, init=False, repr=False, compare=False)
    """The callbacks that write checkpoints on a thread."""
    _transfers: list[WritesLater | PushesSaves] = field(default_factory=list, init=False, repr=False, compare=False)
    """The callbacks that copy checkpoints to a store or push them to a hub."""

    def __post_init__(self) -> None:
        seconds_of(self.max_time)
        self._first()

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
        self._saves = 0
        first = self._first()
        self._expected = bytes_expected(run.model) / WRITE_RATE if first is None else first
        attached = run.bus.subscribers.values()
        self._writers = [each for each in attached if isinstance(each, WritesLater) and isinstance(each, Checkpoint)]
        transfers = [each for each in attached if isinstance(each, (WritesLater, PushesSaves))]
        # Only rank 0 copies and pushes, so only rank 0 can measure these times.
        zero = run.state.is_world_process_zero
        self._transfers = [each for each in transfers if zero and not isinstance(each, Checkpoint)]

    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        now = run.clock()
        self._slowest_step = max(self._slowest_step, now - self._last_check - self._in_saves)
        self._last_check, self._in_saves = now, 0.0
        # The last checkpoint may have to wait for a write that runs now. The factor 2 includes this wait.
        if now + 2 * (self._slowest_step + self._time_of_save(run)) >= self._end:
            reason = f"max_time={self.max_time!r} is nearly up"
            control.request("training_stop", reason)
            if run.saves:
                control.request("save", reason)

    def _time_of_save(self, run: Run) -> float:
        """Estimate how many seconds the save at the stop takes, including writes on threads, copies and pushes."""
        saved = self._slowest_save if self._saves or not run.saves else self._expected
        saved += sum(self._time_on(writer) for writer in self._writers)
        for transfer in self._transfers if run.saves else self._pushing():
            measured = isinstance(transfer, WritesLater) and transfer.slowest_write > 0
            saved += self._time_on(transfer) if measured else self._expected
        return saved

    def _time_on(self, thread: Any) -> float:
        """Return the seconds to reserve for the background writes of a callback.

        Args:
            thread: the callback, such as a `Checkpoint` or a `RemoteStore`.
        """
        first = self._saves < 2 and thread.busy  # until its end, the time of the first write is not known
        return max(thread.slowest_write, self._expected) if first else float(thread.slowest_write)

    def _pushing(self) -> list[PushesSaves]:
        return [each for each in self._transfers if isinstance(each, PushesSaves)]

    def _first(self) -> float | None:
        """Return the field `first_save` in seconds; None if it is None."""
        given = self.first_save
        if given is None or given == 0:
            return None if given is None else 0.0
        return seconds_of(given, "first_save")

    def on_close(self) -> None:
        self._writers, self._transfers = [], []

    @order(Stage.PREPARE)
    def on_save_begin(self, run: Run) -> None:
        self._save_began = run.clock()

    @order(Stage.RELEASE)
    def on_snapshot(self, run: Run) -> None:
        waited = run.clock() - self._save_began
        self._in_saves += waited
        self._saves += 1
        self._slowest_save = max(self._slowest_save, waited)


def bytes_expected(model: nn.Module) -> int:
    """Return the expected size of a checkpoint: the weights, and two states of Adam for each weight that is trained."""
    return sum(weight.nbytes * (3 if weight.requires_grad else 1) for weight in model.parameters())
