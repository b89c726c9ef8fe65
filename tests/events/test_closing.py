"""Closing events run every handler, also if an interrupt arrives between two handlers or inside of one."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from trainbus.events import Callback, TrainerControl, closing
from trainbus.events.bus import EventBus


class Closes(Callback):
    def __init__(self, name: str, closed: list[str], error: BaseException | None = None) -> None:
        self.id, self.closed, self.error = name, closed, error

    def on_close(self) -> None:
        self.closed.append(self.id)
        if self.error is not None:
            raise self.error


def bus_of(*callbacks: Callback) -> EventBus:
    bus = EventBus(object(), TrainerControl())
    for callback in callbacks:
        bus.attach(callback)
    return bus


def interrupted_at(line: int, bus: EventBus) -> BaseException | None:
    """Announce `on_close`, and interrupt when `call_all` reaches a line for the second time."""
    visits = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal visits
        if frame.f_code is not closing.call_all.__code__:
            return trace if event == "call" else None
        if event == "line" and frame.f_lineno == line:
            visits += 1
            if visits == 2:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        bus.announce("on_close")
    except BaseException as error:
        return error
    finally:
        sys.settrace(before)
    return None


def lines_between_handlers() -> list[int]:
    """Return the lines that `call_all` runs for each handler without an error."""
    seen: list[int] = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_code is closing.call_all.__code__:
            seen.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        bus_of(Closes("a", []), Closes("b", [])).announce("on_close")
    finally:
        sys.settrace(before)
    return sorted({line for line in seen if seen.count(line) == 2})


@pytest.mark.parametrize("line", lines_between_handlers())
def test_an_interrupt_at_any_point_between_two_handlers_closes_all(line):
    closed: list[str] = []
    error = interrupted_at(line, bus_of(*(Closes(name, closed) for name in "abc")))
    assert isinstance(error, KeyboardInterrupt)
    assert closed == ["c", "b", "a"], "each of them once"


def test_the_first_error_is_raised_after_all_handlers_ran(caplog):
    closed: list[str] = []
    bus = bus_of(Closes("a", closed, ValueError("a")), Closes("b", closed), Closes("c", closed, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        bus.announce("on_close")
    assert closed == ["c", "b", "a"]
    assert "a.on_close failed too: ValueError: a" in caplog.text
