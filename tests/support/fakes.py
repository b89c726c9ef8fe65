"""Fakes that need no torch: a run with a bus, and callbacks with one handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainbus.events import COMMON_NAMES, EVENTS, Callback, Clock, EventBus, TrainerControl, TrainerState


class FakeRun:
    """A run with a bus. The value of each parameter is a text with its name."""

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


def callback_on(event: str, does: Callable[[], Any], name: str = "Hearer", **attributes: Any) -> Callback:
    """Return a callback of a class `name` with one handler, which names no parameter and calls `does`."""
    return type(name, (Callback,), {event: lambda self: does(), **attributes})()


def raising(error: BaseException) -> Callable[[], None]:
    """Return a function that raises this error."""

    def fail() -> None:
        raise error

    return fail
