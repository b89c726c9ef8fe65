"""The clocks of a run: the numbers and times that triggers and filters read."""

from __future__ import annotations

import time

from ...events.bus import EventBus
from ...events.capabilities import Capability
from ...events.catalog import Clock
from ...events.composition import providers
from ...events.control import TrainerControl
from ...events.state import TrainerState
from ...events.triggers import Moment, Place
from ..data.position import Position
from .records import SessionRecord


class RunClocks:
    """The methods of `Run` that return its step, its epoch and its time."""

    state: TrainerState
    control: TrainerControl
    bus: EventBus
    position: Position | None
    session: SessionRecord

    def count(self, clock: Clock, calls: int) -> int:
        """Return the number that a clock shows now.

        Args:
            clock: STEP for the current step, STEPS_DONE for the number of finished steps, EPOCH for the current epoch,
                or CALLS. The first step and the first epoch are 1.
            calls: the number of announcements since a handler was subscribed. For CALLS, the method returns this
                number.
        """
        if clock is Clock.STEP:
            return self.state.global_step + 1
        if clock is Clock.STEPS_DONE:
            return self.state.global_step
        if clock is Clock.EPOCH:
            return (self.position.epoch if self.position is not None else 0) + 1
        return calls

    def moment(self, place: Place) -> Moment:
        """Return the progress of the run, for triggers. `place` says whether a step or an epoch ends now."""
        state = self.state
        step, max_steps = state.global_step, state.max_steps
        last = step >= max_steps or (self.control.should_training_stop and not self.interrupted())
        # The planned end of a run is the end of its last epoch, as in transformers.
        where = self.position
        cut = where is not None and where.cut and (step < max_steps or where.held)
        return Moment(place, step, state.epoch, max_steps, self.seconds(), last, cut)

    def interrupted(self) -> bool:
        """Return whether the requested stop only interrupts the run, so that a later session continues it.

        The result is True if all callbacks that requested the stop have the capability `INTERRUPTS`, such as
        `StopOnSignal`. It is False if no stop is requested, or if a callback vetoed the stop.
        """
        stops = [self.bus.subscribers.get(author) for author in self.control.reasons("training_stop")]
        interrupts = len(providers(stops, Capability.INTERRUPTS)) == len(stops)
        return self.control.should_training_stop and len(stops) > 0 and interrupts

    def seconds(self) -> float:
        """Return the training time in seconds, including earlier sessions of a resumed run."""
        return self.state.seconds + self.clock() - self.session.began[1]

    def clock(self) -> float:
        """Return the time in seconds since an arbitrary start. A preview replaces this method."""
        return time.monotonic()
