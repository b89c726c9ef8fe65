"""Triggers: every kind, their combinations, and the length of sleeps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from trainbus.events import ArgumentError, Moment, Trigger, at, at_end, every, log_spaced, never


@dataclass(frozen=True)
class FakeCourse:
    """A run of so many steps, cut short after step `stop` if that is given."""

    max_steps: int = 10
    steps_per_epoch: int = 4
    stop: int | None = None
    pace: float = 1.0
    """Seconds per step."""
    heeded: bool = True
    """Whether the stop is asked for before triggers are asked, or only after, as by an evaluation."""

    def moments(self) -> Iterator[Moment]:
        """Give the end of every step, and of every epoch, as the loop does."""
        for step in range(1, self.max_steps + 1):
            over = step == self.max_steps or step == self.stop
            seen = step == self.max_steps or (over and self.heeded)
            epoch, seconds = step / self.steps_per_epoch, step * self.pace
            yield Moment("step", step, epoch, self.max_steps, seconds, seen)
            if over or step % self.steps_per_epoch == 0:
                yield Moment("epoch", step, epoch, self.max_steps, seconds, over)
            if over:
                return


def steps_due(trigger: Trigger, course: FakeCourse, sleeps: bool = False) -> list[int]:
    """Return the step of each moment at which it is due; if it sleeps, ask at the ends of steps only when it wakes."""
    due, before, wakes = [], None, 0.0
    for now in course.moments():
        if now.place == "step":
            if sleeps and now.step < wakes:
                continue
            wakes = trigger.wakes(now.step, now.max_steps)
            assert wakes > now.step
        if trigger.due(now, before):
            due.append(now.step)
            before = now
    return due


# The kinds.


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        (every(1), list(range(1, 11))),
        (every(3), [3, 6, 9]),
        (every(11), []),
        (every(3, after=6), [6, 9]),
        (every(3.0), [3, 6, 9]),
        (every(0.25), [3, 6, 9]),
        (every(0.5), [5, 10]),
        (every(0.001), list(range(1, 11))),
        (every(0.25, after=5), [6, 9]),
        (every(1, "epoch"), [4, 8, 10]),
        (every(2, "epoch"), [8]),
        (every(3, "epochs"), [10]),
        (every(1, "epoch", after=2), [8, 10]),
        (every(4, "s"), [4, 8]),
        (every("4s"), [4, 8]),
        (every("2.5s"), [3, 6, 9]),
        (every("4s", after=6), [6, 10]),
        (at(3), [3]),
        (at(7, 2, 7, 99), [2, 7]),
        (log_spaced(1), [1]),
        (log_spaced(2), [1, 10]),
        (log_spaced(3), [1, 3, 10]),
        (at_end(), [10]),
        (at_end(early=False), [10]),
        (never(), []),
    ],
    ids=repr,
)
def test_trigger_is_due_at(trigger, expected):
    assert steps_due(trigger, FakeCourse()) == expected
    assert steps_due(trigger, FakeCourse(), sleeps=True) == expected


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        (every(1, "epoch"), [4, 6]),
        (every(2, "epoch"), [6]),
        (every(3, "epoch"), []),
        (at_end(), [6]),
        (at_end(early=False), []),
        (every(3) | at_end(), [3, 6]),
        (every(4) | at_end(), [4, 6]),
        (every(1, "epoch") & at_end(), [6]),
        (every(3) & at_end(), [6]),
        (every(4) & at_end(), []),
        (log_spaced(2), [1]),
        (every(0.5), [5]),
    ],
    ids=repr,
)
def test_in_a_run_that_is_cut_short_trigger_is_due_at(trigger, expected):
    assert steps_due(trigger, FakeCourse(stop=6)) == expected
    assert steps_due(trigger, FakeCourse(stop=6), sleeps=True) == expected


def test_end_is_found_if_the_stop_is_requested_after_the_step():
    course = FakeCourse(stop=6, heeded=False)
    assert steps_due(every(4) | at_end(), course) == steps_due(every(4) | at_end(), course, sleeps=True) == [4, 6]


def test_shares_are_rounded_up_to_whole_steps():
    assert steps_due(every(0.3), FakeCourse(max_steps=11)) == [4, 8]


def test_log_spaced_begins_with_the_first_step_and_ends_with_the_last():
    assert steps_due(log_spaced(4), FakeCourse(max_steps=1000)) == [1, 10, 100, 1000]
    assert not log_spaced(4).due(Moment("step", 0, 0.0, 0))
    assert log_spaced(4).wakes(0, 0) == math.inf


def test_seconds_count_from_the_last_time_it_was_due():
    trigger = every("10s")
    before = Moment("step", 5, 0.5, 100, seconds=12.0)
    assert not trigger.due(Moment("step", 9, 0.9, 100, seconds=21.9), before)
    assert trigger.due(Moment("step", 10, 1.0, 100, seconds=22.0), before)
    assert not trigger.due(Moment("epoch", 10, 1.0, 100, seconds=22.0), before)


@pytest.mark.parametrize("end", [at_end(), at_end(early=False)])
def test_end_is_not_due_twice_at_one_step(end):
    now = Moment("epoch", 10, 1.0, 10, last=True)
    assert end.due(now, before=None)
    assert end.due(now, before=Moment("step", 9, 0.9, 10))
    assert not end.due(now, before=Moment("step", 10, 1.0, 10))


# The algebra.

NOW = Moment("step", 6, 0.6, 10)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_or_is_either_and_and_is_both(left, right):
    one, other = (every(3) if due else every(4) for due in (left, right))
    assert (one | other).due(NOW) == (left or right)
    assert (one & other).due(NOW) == (left and right)


def test_joined_triggers_are_due_at_the_same_step():
    with pytest.raises(ArgumentError, match="can never be due"):
        every(4) & every(1, "epoch")
    assert steps_due(every(2) & every(3), FakeCourse()) == [6]


@pytest.mark.parametrize(
    ("trigger", "clocked"),
    [
        (every(3), False),
        (every("3s"), True),
        (every(3) | every("3s"), True),
        (every("3s") & at(3), True),
        (every("auto", overhead=0.1), True),
        (every(0.1) | at(3) & at_end() | log_spaced(3) | every(1, "epoch") | never(), False),
    ],
    ids=repr,
)
def test_trigger_knows_whether_it_looks_at_the_clock(trigger, clocked):
    assert trigger.clocked is clocked


@pytest.mark.parametrize("other", [3, None, at_end, "10min"], ids=["3", "None", "at_end", "10min"])
def test_trigger_is_combined_with_triggers_only(other):
    with pytest.raises(TypeError, match="unsupported operand"):
        every(3) | other
    with pytest.raises(TypeError, match="unsupported operand"):
        every(3) & other


@pytest.mark.parametrize(
    ("seconds", "before", "cost", "due"),
    [
        (59, None, math.inf, False),
        (60, None, math.inf, True),
        (159, 60, 3.0, False),
        (160, 60, 3.0, True),
        (1e6, 60, math.inf, False),
    ],
)
def test_an_interval_by_cost_follows_the_cost_of_the_last_work(seconds, before, cost, due):
    last = None if before is None else Moment("step", 1, 0.1, 10, before)
    now = Moment("step", 6, 0.6, 10, seconds, cost=cost)
    assert every("auto", overhead=0.03).due(now, last) is due
    assert not every("auto", overhead=0.03).due(now._replace(place="epoch"), last)
    assert (every("auto", overhead=0.03) | never()).priced


def test_an_interval_by_cost_needs_a_callback_that_measures_its_work():
    with pytest.raises(ArgumentError, match="needs a callback that measures its work"):
        every("auto", overhead=0.03).due(NOW)


# Spelling.


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("100", every(100)),
        ("100 steps", every(100)),
        ("0.1", every(0.1)),
        ("1e3", every(1000)),
        ("2 epochs", every(2, "epoch")),
        ("1epoch", every(1, "epoch")),
        ("30s", every(30, "s")),
        ("30 sec", every(30, "seconds")),
        ("10min", every(600, "s")),
        (" 10 minutes ", every(10, "min")),
        ("1.5h", every(90, "min")),
        ("2 hours", every(2, "h")),
    ],
)
def test_interval_may_be_a_text(text, same):
    assert every(text) == same


@pytest.mark.parametrize(
    ("units", "seconds"),
    [("s sec second seconds", 1), ("min minute minutes MIN", 60), ("h hour hours", 3600)],
)
def test_units_of_time_have_aliases(units, seconds):
    assert {every(2, unit) for unit in units.split()} == {every(2 * seconds, "s")}


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda: every(0), "above 0"),
        (lambda: every(-5), "above 0"),
        (lambda: every(math.inf), "above 0"),
        (lambda: every(math.nan), "above 0"),
        (lambda: every(True), "above 0"),
        (lambda: every(None), "above 0"),
        (lambda: every(2.5), "not a whole number of steps"),
        (
            lambda: every(0.5, "epoch"),
            "not a whole number of epochs. Pass 1 or more. For a share of the run, pass a number",
        ),
        (lambda: every("min"), "not a number with a unit"),
        (lambda: every(""), "not a number with a unit"),
        (lambda: every("ten minutes"), "not a number with a unit"),
        (lambda: every("10 minuts"), "did you mean 'minutes'?"),
        (lambda: every("atuo"), "every('atuo') is not a number with a unit; did you mean 'auto'?"),
        (lambda: every(" Atuo ", overhead=0.03), "did you mean 'auto'?"),
        (lambda: every(5, "epch"), "did you mean 'epoch'?"),
        (lambda: every(5, "fortnight"), "Known: step, epoch, s,"),
        (lambda: every("auto"), "overhead=None"),
        (lambda: every("auto", overhead=1), "above 0 and below 1"),
        (lambda: every("auto", overhead=0), "above 0 and below 1"),
        (lambda: every("auto", overhead=True), "above 0 and below 1"),
        (lambda: every("auto", "epoch", overhead=0.1), "no unit"),
        (lambda: every("auto", overhead=0.1, times=3), "no times"),
        (lambda: every("auto", overhead=0.1, after=-1), "number of seconds"),
        (lambda: every("10min", overhead=0.1), 'works with every("auto") only'),
        (lambda: at(), "one or more whole numbers"),
        (lambda: at(0), "1 or more"),
        (lambda: at(1.5), "whole numbers"),
        (lambda: at(True), "whole numbers"),
        (lambda: log_spaced(0), "whole number of 1 or more"),
        (lambda: log_spaced(2.0), "whole number of 1 or more"),
        (lambda: log_spaced(True), "whole number of 1 or more"),
    ],
)
def test_invalid_settings_are_refused(wrong, hint):
    with pytest.raises(ArgumentError) as refusal:
        wrong()
    assert hint in str(refusal.value)


def test_base_class_leaves_the_deciding_to_its_subclasses():
    with pytest.raises(NotImplementedError):
        Trigger().due(NOW)


# For any trigger and any run.

AFTER = st.integers(0, 20)
LEAVES = st.one_of(
    st.builds(every, st.integers(1, 25), after=AFTER),
    st.builds(every, st.floats(0.01, 0.99), after=AFTER),
    st.builds(every, st.integers(1, 4), st.just("epoch"), after=st.integers(0, 3)),
    st.builds(every, st.floats(0.5, 30), st.sampled_from(["s", "min"]), after=AFTER),
    st.builds(at, st.integers(1, 40), st.integers(1, 40)),
    st.builds(log_spaced, st.integers(1, 8)),
    st.builds(at_end, early=st.booleans()),
    st.just(never()),
)


def joined(left: Trigger, right: Trigger, either: bool) -> Trigger:
    """Return two triggers joined with `&`, or with `|` if both are never due together."""
    try:
        return left | right if either else left & right
    except ArgumentError:
        return left | right


TRIGGERS = st.recursive(
    LEAVES,
    lambda inner: st.tuples(inner, inner, st.booleans()).map(lambda t: joined(*t)),
    max_leaves=6,
)
COURSES = st.integers(1, 40).flatmap(
    lambda steps: st.builds(
        FakeCourse,
        st.just(steps),
        st.integers(1, 15),
        st.none() | st.integers(1, steps),
        st.floats(0.1, 10),
        st.booleans(),
    )
)


@given(TRIGGERS, COURSES)
@example(every(3) & at_end(), FakeCourse(stop=6))
@example(every(4) & (at(8) | at_end()), FakeCourse(stop=4))
@example((every(2) & at_end()) & every(3), FakeCourse(stop=6))
@example((every(2) & at_end() | at(9)) & every(3), FakeCourse(stop=6))
def test_no_sleep_is_too_long(trigger, course):
    """Asked only when it wakes, a trigger is due at the same steps as when it is asked at the end of every step."""
    assert set(steps_due(trigger, course, sleeps=True)) == set(steps_due(trigger, course))


NAMES = {function.__name__: function for function in (every, at, at_end, log_spaced, never)}


@given(TRIGGERS)
@example(every(50, after=1_234_567))
@example(every(1_234_567, "s"))
@example(every(1 / 3, "min", after=0.1234567))
@example(every(1) | (every(2) | every(3)))
@example(every(1) & (every(2) & (every(3) | every(4))))
def test_trigger_prints_as_it_is_written(trigger):
    read = eval(repr(trigger), dict(NAMES))
    assert read == trigger
    assert hash(read) == hash(trigger)


@given(TRIGGERS, TRIGGERS)
def test_only_equal_triggers_have_the_same_repr(one, other):
    assert (one == other) == (repr(one) == repr(other))


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        (every(50), "every(50)"),
        (every(50, after=100), "every(50, after=100)"),
        (every(0.1), "every(0.1)"),
        (every(1, "epoch"), 'every(1, "epoch")'),
        (every("10min"), 'every("600s")'),
        (every("auto", overhead=0.03), 'every("auto", overhead=0.03)'),
        (every("auto", overhead=0.5, after=0), 'every("auto", overhead=0.5, after=0)'),
        (every("0.5s"), 'every("0.5s")'),
        (at(100, 10), "at(10, 100)"),
        (every(50) | at(1) | at_end(), "every(50) | at(1) | at_end()"),
        ((every(50) | at(1)) & at_end(early=False), "(every(50) | at(1)) & at_end(early=False)"),
        (every(50) & at(100) | never(), "every(50) & at(100) | never()"),
    ],
)
def test_trigger_prints_as(trigger, text):
    assert repr(trigger) == text


# At least so many times.


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        (every(5, times=4), [2, 4, 6, 8, 10]),
        (every(5, times=2), [5, 10]),
        (every(2, times=2), [2, 4, 6, 8, 10]),
        (every(5, times=100), [*range(1, 11)]),
        (every(0.5, times=4), [2, 4, 6, 8, 10]),
        (every(0.1, times=4), [*range(1, 11)]),
        (every(5, times=2, after=5), [6, 8, 10]),
        (every(5, times=1, after=5), [5, 10]),
        (every(5, times=0), [5, 10]),
    ],
    ids=str,
)
def test_a_number_of_times_shortens_the_interval(trigger, expected):
    assert steps_due(trigger, FakeCourse(10)) == expected
    assert steps_due(trigger, FakeCourse(10), sleeps=True) == expected


@given(
    interval=st.one_of(st.integers(1, 50), st.floats(0.01, 0.99)),
    times=st.integers(1, 12),
    after=st.integers(0, 20),
    max_steps=st.integers(1, 60),
)
def test_it_is_due_at_least_that_often_in_every_run_with_enough_steps(interval, times, after, max_steps):
    due = steps_due(every(interval, times=times, after=after), FakeCourse(max_steps))
    left = max_steps - max(after, 1) + 1
    assert len(due) >= min(times, left)
    assert all(step >= after for step in due)
    assert steps_due(every(interval, times=times, after=after), FakeCourse(max_steps), sleeps=True) == due


def test_a_number_of_times_is_printed():
    assert repr(every(5, times=2)) == "every(5, times=2)"
    assert repr(every(0.5, after=3, times=2)) == "every(0.5, after=3, times=2)"
    assert every(5, times=2) == every(5, times=2) != every(5)


@pytest.mark.parametrize("times", [-1, 1.5, True, "2"])
def test_a_wrong_number_of_times_is_refused(times):
    with pytest.raises(ArgumentError, match=r"every\(5, times="):
        every(5, times=times)


@pytest.mark.parametrize("interval", ["10min", "1 epoch"])
def test_only_steps_can_come_more_often(interval):
    with pytest.raises(ArgumentError, match="times works with steps only"):
        every(interval, times=3)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32, torch.tensor])
def test_numbers_of_numpy_and_torch_are_numbers(kind: Any) -> None:
    assert every(kind(5)) == every(5)
    assert every(kind(5), after=kind(10)) == every(5, after=10)
    if kind is not np.float32:
        assert at(kind(3), kind(7)) == at(3, 7)
        assert log_spaced(kind(4)) == log_spaced(4)
        assert every(10, times=kind(3)) == every(10, times=3)


@pytest.mark.parametrize("value", [np.bool_(True), torch.tensor(True), torch.ones(2), np.ones(3)])
def test_other_arrays_are_no_numbers(value: Any) -> None:
    with pytest.raises(ArgumentError):
        every(value)


def test_a_number_as_a_text_takes_the_unit() -> None:
    assert every("5", "min") == every("5min")
    assert every("5", "epoch") == every(5, "epoch")
    with pytest.raises(ArgumentError, match="did you mean 'min'"):
        every("5", "mins")
    with pytest.raises(ArgumentError, match="has two units"):
        every("5min", "epoch")
