"""Stand-ins that need no torch: a run to hang a bus on, and callbacks that do one thing at one event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainbus.events import COMMON_NAMES, EVENTS, Callback, Clock, EventBus, TrainerControl, TrainerState


class FakeRun:
    """Has every value that a handler may ask for, each a text that names it, and a bus of its own."""

    def __init__(self, rank: int = 0) -> None:
        for name in {*COMMON_NAMES, *(param for event in EVENTS for param in event.param_names)}:
            setattr(self, name, f"<{name}>")
        self.run = self
        self.state = TrainerState()
        self.control = TrainerControl(rank)
        self.bus = EventBus(self, self.control)
        self.counts: dict[Clock, int] = {}

    def count(self, clock: Clock, calls: int) -> int:
        return calls if clock is Clock.CALLS else self.counts[clock]

    def at_step(self, step: int) -> FakeRun:
        self.state.global_step = self.control.speaking.step = step
        return self


def hearing(event: str, does: Callable[[], Any], name: str = "Hearer", **attributes: Any) -> Callback:
    """Return a callback, of a class `name`, that does one thing at one event and names no parameter."""
    return type(name, (Callback,), {event: lambda self: does(), **attributes})()


def raising(error: BaseException) -> Callable[[], None]:
    """Return a function that raises this very error."""

    def fail() -> None:
        raise error

    return fail
