"""The training loop: a state machine that takes the batches of each step, makes the step and announces the events.

After each step and epoch, it announces an event for each raised flag, in the order log, evaluate, save.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from ..events.bus import EventBus
from ..events.control import TrainerControl
from ..events.flags import SERVED, Flag
from ..events.state import TrainerState
from .data.position import Position


class Phase(Enum):
    """The phases of a training. `NEXT` lists which phase may follow which."""

    BEGIN = "begin"
    EPOCH = "epoch"
    FETCH = "fetch"
    STEP = "step"
    SERVE = "serve"
    EPOCH_END = "epoch end"
    END = "end"
    DONE = "done"


NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.BEGIN: frozenset({Phase.EPOCH, Phase.END}),
    Phase.EPOCH: frozenset({Phase.FETCH, Phase.EPOCH_END}),
    Phase.FETCH: frozenset({Phase.STEP, Phase.EPOCH_END}),
    Phase.STEP: frozenset({Phase.SERVE}),
    Phase.SERVE: frozenset({Phase.FETCH, Phase.EPOCH_END}),
    Phase.EPOCH_END: frozenset({Phase.EPOCH, Phase.END}),
    Phase.END: frozenset({Phase.DONE}),
    Phase.DONE: frozenset(),
}
"""The phases that may follow each phase. `make docs` draws the diagram in docs/tour.md from this table."""

WORK: dict[Flag, str] = dict(zip(SERVED, ("on_log_due", "on_evaluate_due", "on_save_due")))
"""Flag -> the event whose handlers do the work that the flag requests, such as writing a checkpoint."""


class StepBatches(Protocol):
    """The batches of one optimizer step: a `Window` in a training, a `VirtualWindow` in a preview."""

    batches: int
    """The number of batches of the step on this rank."""
    rows: int
    """The number of samples of the step, over all ranks."""


class BatchSource(Protocol):
    """The source of the batches of each step: `Feed` in a training, `VirtualFeed` in a preview."""

    def reach(self, batches_done: int) -> None:
        """If no batch of the epoch is done (`batches_done` is 0), restore the RNG states of a resume."""

    def begin(self, epoch: int, batches_done: int) -> None:
        """Start an epoch, and skip its first `batches_done` batches. Epochs count from 0."""

    def take(self) -> Any | None:
        """Return the batches of the next step as a `StepBatches`, or None at the end of the epoch."""


class StepMaker(Protocol):
    """Makes an optimizer step from its batches: `Stepper` in a training, `VirtualStepper` in a preview."""

    def step(self, window: Any) -> None:
        """Make one optimizer step from the batches that `BatchSource.take` returned."""


class Loop:
    """The state machine of a training. `run()` executes one phase after the other until the phase is DONE."""

    def __init__(
        self,
        bus: EventBus,
        state: TrainerState,
        control: TrainerControl,
        feed: BatchSource,
        stepper: StepMaker,
        *,
        epochs: int,
        batches_per_epoch: int,
        position: Position,
        agree: Callable[[TrainerControl], None],
    ) -> None:
        """Create the loop. Its first phase is BEGIN.

        Args:
            bus: announces the events.
            state: the trainer state, in which the loop counts steps, epochs and samples.
            control: the flags that callbacks raise.
            feed: the source of the batches of each step.
            stepper: makes a step from its batches.
            epochs: the maximum number of epochs.
            batches_per_epoch: number of batches of one rank in an epoch. Only used while `position.length` is 0.
            position: the position in the data at which the loop begins. The loop advances the position.
            agree: a function that makes all ranks agree on the raised flags. In a single process, it does nothing.
        """
        self.state, self.control, self.feed, self.stepper = state, control, feed, stepper
        self.epochs, self.batches_per_epoch, self.position, self.agree = epochs, batches_per_epoch, position, agree
        self.announce, self.phase = bus.announce, Phase.BEGIN
        self._batches: Any = None

    def run(self) -> None:
        """Execute one phase after the other until the phase is `Phase.DONE`."""
        while self.phase is not Phase.DONE:
            self.phase = self._turn()

    def _turn(self) -> Phase:
        match self.phase:
            case Phase.BEGIN:
                self.announce("on_train_begin")
                self.agree(self.control)
                return Phase.END if self._over() and self.position.closed else Phase.EPOCH

            case Phase.EPOCH:
                leaves = self.position.batches > 0 and self._leaves_epoch()  # resumed with a request to stop
                self.feed.reach(self.position.batches)
                self.announce("on_epoch_begin")
                self.feed.begin(*self.position.open())
                return Phase.EPOCH_END if leaves else Phase.FETCH

            case Phase.FETCH:
                self._batches = self.feed.take()
                return Phase.STEP if self._batches is not None else Phase.EPOCH_END

            case Phase.STEP:
                self.announce("on_step_begin")
                self.stepper.step(self._batches)
                self._count(self._batches)
                self.announce("on_step_end")
                return Phase.SERVE

            case Phase.SERVE:
                self._serve()
                return Phase.EPOCH_END if self._leaves_epoch() else Phase.FETCH

            case Phase.EPOCH_END:
                self._close_epoch()
                self._serve()
                self.control.begin("epoch_stop")  # reads True until on_epoch_begin
                return Phase.END if self._over() else Phase.EPOCH

            case Phase.END:
                self.feed.reach(0)
                self._serve()  # an evaluation at the end of the last epoch may have requested more work
                self.control.begin("training_stop")  # reads True through on_train_end
                self.announce("on_train_end")
                self.control.finish()
                return Phase.DONE

        raise AssertionError(f"no phase follows {self.phase}")

    def _leaves_epoch(self) -> bool:
        return self.control.pending and (self.control.should_training_stop or self.control.should_epoch_stop)

    def _close_epoch(self) -> None:
        state, control, position = self.state, self.control, self.position
        stops, length = control.should_training_stop, position.length or self.batches_per_epoch
        short = 0 < position.batches < length
        position.cut = position.held or (stops and position.batches not in (0, length))
        if position.batches == 0:
            control.request_by_run("training_stop", f"epoch {position.epoch + 1} of the data has no batch")
        elif short and position.epoch + 1 >= self.epochs and not (stops or control.should_epoch_stop):
            seen = f"the last epoch has {position.batches} of {length} expected batches"
            control.request_by_run("training_stop", f"the data ends before step {state.max_steps}: {seen}")
        self.announce("on_epoch_end")
        self.agree(control)
        position.leave()

    def _over(self) -> bool:
        return self.control.should_training_stop or self.position.epoch >= self.epochs

    def _count(self, batches: StepBatches) -> None:
        state, position = self.state, self.position
        position.advance(batches.batches)
        state.global_step += 1
        state.samples_seen += batches.rows
        state.epoch = position.epoch + position.batches / (position.length or self.batches_per_epoch)
        self.control.speaking.step = state.global_step
        self._batches = None

    def _serve(self) -> None:
        """Announce the event of each raised flag, in the order of `SERVED`. The handlers of the event do the work."""
        self.agree(self.control)
        if not self.control.pending:
            return
        for flag in SERVED:
            if requested_by := self.control.begin(flag):
                self.announce(WORK[flag], requested_by=requested_by)
                self.control.finish(flag)
                self.agree(self.control)
        self.control.settle()
