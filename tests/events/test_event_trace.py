"""Traces: the announcements of a run as text."""

from __future__ import annotations

import pytest

from trainbus.events import EventBus, Trace, TrainerControl, record


def test_record_lists_every_event_with_its_step_handled_or_not(run, bus):
    with record(bus) as trace:
        bus.announce("on_train_begin")
        bus.on("on_log", lambda: None)
        run.at_step(1).bus.announce("on_step_end")
        bus.announce("on_log", logs={})
    assert trace.entries == [(0, "on_train_begin"), (1, "on_step_end"), (1, "on_log")]
    assert trace.events == ["on_train_begin", "on_step_end", "on_log"]


def test_nested_events_follow_their_outer_event(bus):
    bus.on("on_log_due", lambda: bus.announce("on_log"))
    with record(bus) as trace:
        bus.announce("on_log_due")
    assert trace.events == ["on_log_due", "on_log"]


def test_recording_ends_with_its_block_also_on_an_error(bus):
    with pytest.raises(ValueError), record(bus) as trace:  # noqa: PT012
        bus.announce("on_log")
        raise ValueError
    bus.announce("on_save")
    assert trace.events == ["on_log"]
    assert bus.watchers == []


def test_two_recordings_do_not_disturb_each_other(bus):
    with record(bus) as whole:
        with record(bus) as part:
            bus.announce("on_log")
        bus.announce("on_save")
    assert (part.events, whole.events) == (["on_log"], ["on_log", "on_save"])


def test_run_without_a_control_is_recorded_too():
    bus = EventBus(object(), TrainerControl())
    with record(bus) as trace:
        bus.announce("on_log")
    assert trace.entries == [(0, "on_log")]


def test_text_shows_each_step_once():
    trace = Trace([(0, "on_train_begin"), (1, "on_step_end"), (1, "on_log"), (20000, "on_step_end")])
    assert str(trace) == "    0  on_train_begin\n    1  on_step_end\n       on_log\n20000  on_step_end\n"


def test_difference_of_equal_traces_is_empty():
    assert Trace([(1, "on_log")]).difference(Trace([(1, "on_log")])) == ""


def test_trace_difference_shows_the_entries_of_each_side():
    mine = Trace([(1, "on_step_end"), (1, "on_log"), (2, "on_step_end")])
    other = Trace([(1, "on_step_end"), (2, "on_step_end"), (2, "on_save")])
    lines = mine.difference(other).splitlines()
    assert lines[:2] == ["--- this", "+++ other"]
    assert lines[3:] == [" 1 on_step_end", "-1 on_log", " 2 on_step_end", "+2 on_save"]


def test_difference_sees_the_same_event_at_another_step():
    assert "-1 on_log" in Trace([(1, "on_log")]).difference(Trace([(2, "on_log")]))
