"""The effect of a failing handler on other handlers, on the run, and on its own error."""

from __future__ import annotations

import logging
import sys
from functools import partial

import pytest

from support.fakes import FakeRun, callback_on, raising
from trainbus.events import EVENTS, Callback, EventBus, SubscriptionError
from trainbus.events.catalog import ALL_HANDLERS_RUN, LAST_IN_FIRST_OUT

NAMES = [event.name for event in EVENTS]
POSITIONS = pytest.mark.parametrize("position", [0, 1, 2], ids=["first", "middle", "last"])
EVERY_EVENT = pytest.mark.parametrize("event", NAMES)


def three(event: str, position: int, policy: str, error: Exception, heard: list) -> EventBus:
    """Return a bus with three hearers, called in the order A, B, C, of which the one at `position` fails."""
    bus = FakeRun().at_step(7).bus
    names = "CBA" if event in LAST_IN_FIRST_OUT else "ABC"
    for name in names:
        fails = name == "ABC"[position]
        does = raising(error) if fails else partial(heard.append, name)
        bus.attach(callback_on(event, does, name, on_error=policy if fails else "raise"))
    return bus


def expected(position: int) -> list[str]:
    return [name for index, name in enumerate("ABC") if index != position]


@EVERY_EVENT
@POSITIONS
def test_raise_lets_the_very_error_out(event, position, heard):
    error = ValueError("no space left")
    bus = three(event, position, "raise", error, heard)
    with pytest.raises(ValueError, match="no space left") as caught:
        bus.announce(event)
    assert caught.value is error
    assert heard == (expected(position) if event in ALL_HANDLERS_RUN else list("ABC"[:position]))


@EVERY_EVENT
@POSITIONS
def test_warn_logs_and_continues_every_time(event, position, heard, caplog):
    bus = three(event, position, "warn", ValueError("no space left"), heard)
    bus.announce(event)
    bus.announce(event)
    assert heard == 2 * expected(position)
    assert len(caplog.records) == 2
    record = caplog.records[0]
    assert record.levelno == logging.WARNING
    assert record.exc_info[1].args == ("no space left",)
    for part in (f"{'ABC'[position]}.{event}", "after step 7", "ValueError: no space left"):
        assert part in record.getMessage()


@EVERY_EVENT
@POSITIONS
def test_quarantine_logs_once_and_unsubscribes(event, position, heard, caplog):
    bus = three(event, position, "quarantine", ValueError("no space left"), heard)
    bus.announce(event)
    bus.announce(event)
    assert heard == 2 * expected(position)
    assert len(caplog.records) == 1
    assert "unsubscribed" in caplog.text
    assert sorted(bus.subscribers) == expected(position)


def test_quarantine_unsubscribes_from_every_event(bus, heard, caplog):
    class Twice(Callback):
        on_error = "quarantine"

        def on_log(self):
            raise ValueError

        def on_save(self):
            heard.append("save")

    bus.attach(Twice())
    bus.announce("on_log")
    bus.announce("on_save")
    assert heard == []


@pytest.mark.parametrize("attribute", ["before", "after"])
def test_quarantine_keeps_orders_that_name_the_detached_callback(bus, heard, caplog, attribute):
    bus.attach(callback_on("on_log", raising(ValueError()), "Fragile", on_error="quarantine"))
    bus.attach(callback_on("on_log", partial(heard.append, "A"), "A", **{attribute: "Fragile"}))
    bus.announce("on_log")
    bus.announce("on_log")
    assert heard == ["A", "A"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
@EVERY_EVENT
def test_error_carries_a_note_with_callback_event_and_step(event):
    error = ValueError()
    bus = three(event, 1, "raise", error, [])
    with pytest.raises(ValueError):
        bus.announce(event)
    (note,) = error.__notes__
    for part in (f"B.{event}", "step 7"):
        assert part in note


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
def test_error_of_a_nested_event_names_both_handlers_and_each_once(bus):
    error = ValueError()
    bus.attach(callback_on("on_log", raising(error), "Inner"))
    bus.attach(callback_on("on_log_due", lambda: bus.announce("on_log"), "Outer"))
    for _ in range(2):
        with pytest.raises(ValueError):
            bus.announce("on_log_due")
    assert [note.split()[0] for note in error.__notes__] == ["Inner.on_log", "Outer.on_log_due"]


@pytest.mark.parametrize("event", sorted(ALL_HANDLERS_RUN))
def test_at_closing_events_the_first_error_is_raised_and_the_later_ones_are_logged(bus, heard, event, caplog):
    errors = {name: ValueError(f"{name} is broken") for name in "AB"}
    for name, error in errors.items():
        bus.attach(callback_on(event, raising(error), name))
    bus.attach(callback_on(event, partial(heard.append, "C"), "C"))
    with pytest.raises(ValueError) as caught:
        bus.announce(event)
    raised, later = ("B", "A") if event in LAST_IN_FIRST_OUT else ("A", "B")
    assert heard == ["C"]
    assert caught.value is errors[raised]
    assert f"{later} is broken" in caplog.text
    assert f"{raised} is broken" not in caplog.text


@pytest.mark.parametrize("policy", ["raise", "warn", "quarantine"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_no_failures_of_a_handler(bus, policy, interrupt):
    bus.attach(callback_on("on_log", raising(interrupt()), "A", on_error=policy))
    with pytest.raises(interrupt):
        bus.announce("on_log")
    assert list(bus.subscribers) == ["A"]


def test_functions_have_policies_too(bus, heard, caplog):
    bus.on("on_log", raising(ValueError("one")), on_error="warn", id="warner")
    bus.on("on_log", raising(ValueError("two")), on_error="quarantine", id="leaver")
    bus.on("on_log", partial(heard.append, "A"))
    bus.announce("on_log")
    assert heard == ["A"]
    assert list(bus.subscribers) == ["warner", "partial"]


def test_author_is_restored_after_a_failure(bus, control, caplog):
    bus.attach(callback_on("on_log", raising(ValueError()), "A"))
    with pytest.raises(ValueError):
        bus.announce("on_log")
    assert (control.speaking.author, control.speaking.event) == ("you", "")


@pytest.mark.parametrize(("policy", "hint"), [("wran", "did you mean 'warn'?"), ("ignore", "raise, warn, quarantine")])
def test_unknown_policy_is_refused(bus, policy, hint):
    with pytest.raises(SubscriptionError) as of_callback:
        bus.attach(callback_on("on_log", lambda: None, "A", on_error=policy))
    with pytest.raises(SubscriptionError) as of_function:
        bus.on("on_log", lambda: None, on_error=policy, id="A")
    for refusal in (of_callback, of_function):
        assert hint in str(refusal.value)
        assert "A.on_error" in str(refusal.value)
    assert bus.subscribers == {}
