"""The machine: which phase of a run follows which, and what is announced in each. It knows no feature.

The loop takes windows of batches from a feed, has a stepper turn each into one optimizer step, announces every moment,
and serves what callbacks asked for in the one fixed order: log, evaluate, save. Everything else is a subscriber.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from ..events.bus import EventBus
from ..events.control import SERVED, TrainerControl
from ..events.state import TrainerState
from .data.position import Position


class Phase(Enum):
    """Where a run is."""

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
    Phase.EPOCH: frozenset({Phase.FETCH}),
    Phase.FETCH: frozenset({Phase.STEP, Phase.EPOCH_END}),
    Phase.STEP: frozenset({Phase.SERVE}),
    Phase.SERVE: frozenset({Phase.FETCH, Phase.EPOCH_END}),
    Phase.EPOCH_END: frozenset({Phase.EPOCH, Phase.END}),
    Phase.END: frozenset({Phase.DONE}),
    Phase.DONE: frozenset(),
}
"""Every arrow of the machine. The diagram in the README is drawn from it; a test walks each arrow, and no other."""

WORK = dict(zip(SERVED, ("on_log_due", "on_evaluate_due", "on_save_due")))
"""The event that asks for the work of each flag."""


class Window(Protocol):
    """The batches of one optimizer step."""

    batches: int
    """How many batches it holds."""
    rows: int
    """How many rows they hold, over all processes."""


class Feed(Protocol):
    """Where windows come from."""

    def begin(self, epoch: int, batches_done: int) -> None:
        """Go to the given batch of the given epoch."""

    def take(self) -> Any | None:
        """Return the next window of the epoch, or None when it is used up."""


class Stepper(Protocol):
    """What turns a window into one optimizer step."""

    def step(self, window: Any) -> None:
        """Make the step."""


class Loop:
    """The state machine. `run()` turns the crank until the phase is DONE."""

    def __init__(
        self,
        bus: EventBus,
        state: TrainerState,
        control: TrainerControl,
        feed: Feed,
        stepper: Stepper,
        *,
        epochs: int,
        batches_per_epoch: int,
        position: Position,
        agree: Callable[[TrainerControl], None],
    ) -> None:
        """Put the machine at BEGIN.

        Args:
            bus: where every moment is announced.
            state: counted up here: steps, epochs, rows.
            control: what callbacks ask for.
            feed: where windows of batches come from.
            stepper: what makes a step of a window.
            epochs: how many epochs to run at most.
            batches_per_epoch: batches of one process in a whole epoch, the unit of `state.epoch`.
            position: where to begin; counted up here.
            agree: makes the processes of a run agree on what is asked for; does nothing in a single one.
        """
        self.state, self.control, self.feed, self.stepper = state, control, feed, stepper
        self.epochs, self.batches_per_epoch, self.position, self.agree = epochs, batches_per_epoch, position, agree
        self.announce = bus.announce
        self.phase = Phase.BEGIN
        self._window: Any = None

    def run(self) -> None:
        """Run until there is nothing left to do."""
        while self.phase is not Phase.DONE:
            self.phase = self._turn()

    def _turn(self) -> Phase:
        match self.phase:
            case Phase.BEGIN:
                self.announce("on_train_begin")
                self.agree(self.control)
                return Phase.END if self._over() else Phase.EPOCH

            case Phase.EPOCH:
                self.announce("on_epoch_begin")
                self.feed.begin(self.position.epoch, self.position.batches)
                return Phase.FETCH

            case Phase.FETCH:
                self._window = self.feed.take()
                return Phase.STEP if self._window is not None else Phase.EPOCH_END

            case Phase.STEP:
                self.announce("on_step_begin")
                self.stepper.step(self._window)
                self._count(self._window)
                self.announce("on_step_end")
                return Phase.SERVE

            case Phase.SERVE:
                self._serve()
                return Phase.EPOCH_END if self._leaves_epoch() else Phase.FETCH

            case Phase.EPOCH_END:
                self._close_epoch()
                self._serve()
                self.control.take("epoch_stop")
                return Phase.END if self._over() else Phase.EPOCH

            case Phase.END:
                self._serve()  # what became due because the run has just ended, by an evaluation for instance
                self.control.take("training_stop")
                self.announce("on_train_end")
                return Phase.DONE

        raise AssertionError(f"no way leads on from {self.phase}")

    def _leaves_epoch(self) -> bool:
        return self.control.pending and (self.control.should_training_stop or self.control.should_epoch_stop)

    def _close_epoch(self) -> None:
        position = self.position
        if position.batches == 0:
            self.control.request("training_stop", f"epoch {position.epoch + 1} of the data holds no batch")
        self.announce("on_epoch_end")
        self.agree(self.control)
        # An epoch in which the run is stopped is taken up again where it was left, should the run be resumed.
        if not self.control.should_training_stop or position.batches in (0, self._length()):
            position.next_epoch()

    def _length(self) -> int:
        return self.position.length or self.batches_per_epoch

    def _over(self) -> bool:
        return self.control.should_training_stop or self.position.epoch >= self.epochs

    def _count(self, window: Window) -> None:
        state, position = self.state, self.position
        position.batches += window.batches
        state.global_step += 1
        state.samples_seen += window.rows
        state.epoch = position.epoch + position.batches / self._length()
        self.control.speaking.step = state.global_step
        self._window = None

    def _serve(self) -> None:
        """Have the work done that was asked for, in the one order that is always right; what is vetoed is dropped."""
        self.agree(self.control)
        if not self.control.pending:
            return
        for flag in SERVED:
            requested_by = self.control.take(flag)
            if requested_by:
                self.announce(WORK[flag], requested_by=requested_by)
                self.agree(self.control)
        self.control.settle()
