"""Policies for exceptions, budgets, and what failures leave in the control and in the ledger."""

from __future__ import annotations

import pytest

from support.fakes import FakeRun, callback_on
from trainbus.events import Callback, EventBus, RankFailure, Stage, SubscriptionError
from trainbus.events.errors import EvaluationStopped
from trainbus.events.isolation import WINDOW
from trainbus.events.policies import Budget, Policy, budget_of, policy_of, quarantine, retry


class Failing(Callback):
    """Requests a checkpoint and vetoes an evaluation, and then fails in the first calls."""

    def __init__(self, times: int, on_error: str) -> None:
        self.left, self.on_error, self.calls, self.closed = times, on_error, 0, 0

    def on_step_end(self, control) -> None:
        self.calls += 1
        control.request("save", f"call {self.calls}")
        control.veto("evaluate", "not now")
        if self.left > 0:
            self.left -= 1
            raise ValueError("no space left")

    def on_close(self) -> None:
        self.closed += 1


def announced(bus: EventBus, times: int, event: str = "on_step_end") -> None:
    for step in range(1, times + 1):
        bus.run.at_step(step)
        bus.announce(event)


def actions(bus: EventBus, flag: str = "callback") -> list[str]:
    return [str(entry) for entry in bus.control.ledger.of(flag)]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("raise", Policy()),
        ("warn", Policy("warn")),
        ("quarantine", Policy("quarantine")),
        ("quarantine(after=3)", Policy("quarantine", after=3)),
        ("quarantine(3)", Policy("quarantine", after=3)),
        (quarantine(after=2), Policy("quarantine", after=2)),
        ("retry(3)", Policy("raise", retries=3)),
        ("retry", Policy("raise", retries=3)),
        ("retry(2, then='warn')", Policy("warn", retries=2)),
        ("retry(times=2, then=quarantine)", Policy("quarantine", retries=2)),
        (retry(4, then="warn"), Policy("warn", retries=4)),
    ],
)
def test_a_policy_is_read_from_its_text(text, policy):
    assert policy_of(text, "A") == policy


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("retry(0)", "1 or more"),
        ("retry(2, then='ignore')", "raise, warn, quarantine"),
        ("quarantine(n=2)", "'n=2' has no meaning"),
        ("warn(2)", "'2' has no meaning"),
        ("quarantin(after=2)", "did you mean 'quarantine'?"),
        ("quarantine(after=2", "quarantine(after=3)"),
        (3, "on_error is 3"),
        (None, "on_error is None"),
    ],
)
def test_an_unreadable_policy_is_refused_when_the_callback_is_attached(bus, text, hint):
    with pytest.raises(SubscriptionError) as refused:
        bus.attach(callback_on("on_log", lambda: None, "A", on_error=text))
    assert "A.on_error" in str(refused.value)
    assert hint in str(refused.value)


def test_writes_of_a_failed_handler_are_taken_back_and_the_ledger_says_so(bus, caplog):
    bus.attach(Failing(1, "warn"))
    announced(bus, 1)
    assert not bus.control.should_save
    assert not bus.control.vetoed("evaluate")
    assert "withdraw save" in actions(bus, "save")[-1]
    assert "taken back" in actions(bus, "save")[-1]
    bus.run.at_step(2)
    bus.announce("on_step_end")
    assert bus.control.should_save
    assert bus.control.vetoed("evaluate")


def test_requests_from_before_the_failed_call_and_of_others_stay(bus, caplog):
    callback = Failing(0, "warn")
    bus.attach(callback)
    bus.attach(callback_on("on_log", lambda: bus.control.request("training_stop", "mine"), "Other"))
    announced(bus, 1)
    bus.announce("on_log")
    callback.left = 1
    bus.announce("on_step_end")
    assert bus.control.reasons("save") == {"Failing": "call 1"}
    assert bus.control.vetoes("evaluate") == {"Failing": "not now"}
    assert bus.control.reasons("training_stop") == {"Other": "mine"}


def test_a_handler_that_withdraws_and_fails_keeps_its_request(bus, caplog):
    class Withdraws(Callback):
        on_error = "warn"

        def on_step_end(self, control) -> None:
            control.request("save", "due")

        def on_log(self, control) -> None:
            control.withdraw("save")
            raise ValueError

    bus.attach(Withdraws())
    bus.announce("on_step_end")
    bus.announce("on_log")
    assert bus.control.reasons("save") == {"Withdraws": "due"}


def test_writes_stay_if_the_run_ends_with_the_error(bus):
    bus.attach(Failing(1, "raise"))
    with pytest.raises(ValueError):
        announced(bus, 1)
    assert bus.control.should_save


def test_retry_repeats_the_call_and_keeps_only_the_writes_of_the_last(bus):
    callback = Failing(2, "retry(2)")
    bus.attach(callback)
    announced(bus, 1)
    assert callback.calls == 3
    assert bus.control.reasons("save") == {"Failing": "call 3"}
    assert [line.split()[3] for line in actions(bus)] == ["retry", "retry"]
    assert (bus.isolation.failures["Failing"].count, bus.isolation.failures["Failing"].retries) == (0, 2)


def test_the_error_of_the_last_retry_is_raised(bus):
    callback = Failing(9, "retry(2)")
    bus.attach(callback)
    with pytest.raises(ValueError, match="no space left") as caught:
        announced(bus, 1)
    assert callback.calls == 3
    if hasattr(caught.value, "add_note"):  # Python 3.10 has no notes
        assert "its on_error is 'retry(2)'" in caught.value.__notes__[0]


@pytest.mark.parametrize("text", ["raise", "warn", "quarantine", quarantine(2), "retry(3)", retry(2, "warn")])
def test_the_text_of_a_policy_is_read_back(text):
    assert policy_of(text, "label").text == text


@pytest.mark.parametrize(("then", "calls"), [("warn", 6), ("quarantine", 3)])
def test_the_policy_after_the_retries_holds(bus, caplog, then, calls):
    callback = Failing(99, retry(2, then))
    bus.attach(callback)
    announced(bus, 2)
    assert callback.calls == calls


def test_quarantine_after_n_failures_warns_before_and_closes_the_callback(bus, caplog):
    callback = Failing(99, quarantine(after=3))
    bus.attach(callback)
    announced(bus, 5)
    assert (callback.calls, callback.closed) == (3, 1)
    assert "Failing" not in bus.subscribers
    assert ["unsubscribed" in record.getMessage() for record in caplog.records] == [False, False, True]
    assert [line.split()[3] for line in actions(bus)] == ["fail", "fail", "fail", "quarantine"]
    record = bus.isolation.failures["Failing"]
    assert (record.count, record.steps, record.quarantined) == (3, [1, 2, 3], 3)
    assert str(record) == (
        "Failing: failed 3 times, after steps 1, 2, 3, in on_step_end: ValueError: no space left; "
        "unsubscribed at step 3"
    )
    assert 'raise ValueError("no space left")' in bus.isolation.summary()


def test_failures_below_the_number_keep_the_callback(bus, caplog):
    callback = Failing(2, quarantine(after=3))
    bus.attach(callback)
    announced(bus, 5)
    assert (callback.calls, callback.closed) == (5, 0)


@pytest.mark.parametrize("error", [RankFailure("rank 1 is gone"), EvaluationStopped("enough")])
@pytest.mark.parametrize("policy", ["warn", "quarantine", "retry(3, then='warn')"])
def test_errors_about_the_run_leave_an_isolated_handler_at_once(bus, policy, error):
    calls = []

    def fail() -> None:
        calls.append(1)
        raise error

    bus.attach(callback_on("on_log", fail, "A", on_error=policy))
    with pytest.raises(type(error)):
        bus.announce("on_log")
    assert calls == [1]
    assert list(bus.subscribers) == ["A"]


def test_a_policy_of_one_instance_overrides_the_class(bus, caplog):
    callback = callback_on("on_log", lambda: 1 / 0, "A")
    callback.on_error = "warn"
    bus.attach(callback)
    bus.announce("on_log")
    other = FakeRun().bus
    other.attach(callback_on("on_log", lambda: 1 / 0, "A"))
    with pytest.raises(ZeroDivisionError):
        other.announce("on_log")


# Budgets.


@pytest.mark.parametrize(
    ("text", "amount", "share"),
    [("2%", 0.02, True), ("200us", 2e-4, False), ("1.5ms", 1.5e-3, False), ("0.5 s", 0.5, False), ("3µs", 3e-6, False)],
)
def test_a_budget_is_read_from_its_text(text, amount, share):
    found = budget_of(text, "warn", "A")
    assert (found.amount, found.is_share) == (pytest.approx(amount), share)


@pytest.mark.parametrize("text", ["2", "0%", "-1us", "fast", "2 %%", 200])
def test_an_unreadable_budget_is_refused(bus, text):
    with pytest.raises(SubscriptionError, match=r"A.budget is .*'200us'"):
        bus.attach(callback_on("on_log", lambda: None, "A", budget=text))


def test_an_unknown_remedy_is_refused(bus):
    with pytest.raises(SubscriptionError, match="did you mean 'thin'"):
        bus.attach(callback_on("on_log", lambda: None, "A", budget="2%", over_budget="thinn"))


def test_excess_compares_with_time_or_with_steps():
    assert Budget(0.02, True).excess(spent=1.0, elapsed=10.0, steps=1) == pytest.approx(5)
    assert Budget(0.1, False).excess(spent=1.0, elapsed=99.0, steps=20) == pytest.approx(0.5)


def timed_bus(seconds: float, **attributes) -> tuple[EventBus, list[int]]:
    """A bus with a reporter that takes a number of seconds of a virtual clock. A step takes one second more."""
    bus, heard, now = FakeRun().bus, [], [0.0]
    bus.isolation.clock = lambda: now[0]

    def report() -> None:
        heard.append(bus.control.step)
        now[0] += seconds

    def work() -> None:
        now[0] += 1.0

    bus.attach(callback_on("on_step_end", report, "Slow", stage=Stage.REPORT, **attributes))
    bus.attach(callback_on("on_step_end", work, "Work"))
    bus.run.count = lambda clock, calls: bus.control.step
    return bus, heard


@pytest.mark.parametrize("budget", ["2%", "20ms"])
def test_over_budget_warns_once_and_continues(caplog, budget):
    bus, heard = timed_bus(0.1, budget=budget)
    announced(bus, 6 * WINDOW)
    assert len(heard) == 6 * WINDOW
    assert len(caplog.records) == 1
    assert "Slow took 100000 microseconds per step, budget" in caplog.text
    assert [line.split()[3:5] for line in actions(bus)] == [["over", "budget"]]
    assert "budget" in bus.isolation.summary()


@pytest.mark.parametrize("budget", ["20%", "110ms"])
def test_a_callback_within_its_budget_is_not_accused(caplog, budget):
    bus, heard = timed_bus(0.1, budget=budget, over_budget="quarantine")
    announced(bus, 6 * WINDOW)
    assert len(heard) == 6 * WINDOW
    assert caplog.records == []
    assert bus.isolation.summary() == ""
    assert actions(bus) == []


def test_a_single_slow_window_is_forgiven(caplog):
    bus, _ = timed_bus(0.1, budget="150ms", over_budget="quarantine")
    for step in range(1, 6 * WINDOW):
        bus.run.at_step(step)
        bus.announce("on_step_end")
        if step == 2 * WINDOW:
            bus.isolation.meters["Slow"].add(5.0)  # a pause of the machine
    assert "Slow" in bus.subscribers
    assert caplog.records == []


def test_over_budget_quarantines(caplog):
    bus, heard = timed_bus(0.1, budget="50ms", over_budget="quarantine")
    announced(bus, 6 * WINDOW)
    assert "Slow" not in bus.subscribers
    assert heard[-1] <= 2 * WINDOW + 1


def test_thinning_brings_a_reporter_into_its_budget_and_keeps_closing_events(caplog):
    bus, heard = timed_bus(0.1, budget="20ms", over_budget="thin")
    announced(bus, 20 * WINDOW)
    late = [step for step in heard if step > 4 * WINDOW]
    assert 0.1 * len(late) / (16 * WINDOW) <= 0.02
    assert len(late) > 0
    every = bus.isolation.failures["Slow"].every
    assert all(step % every == 0 for step in late)
    assert len([line for line in actions(bus) if " thin " in line]) == 1


@pytest.mark.parametrize("stage", [Stage.PREPARE, Stage.MEASURE, Stage.DECIDE, Stage.ACT])
def test_only_reporters_may_be_thinned(bus, stage):
    decider = callback_on("on_step_end", lambda: None, "A", stage=stage, budget="2%", over_budget="thin")
    with pytest.raises(SubscriptionError, match=rf"A.on_step_end runs in the stage {stage.name}.*'quarantine'"):
        bus.attach(decider)
    assert bus.subscribers == {}


def test_a_field_of_a_dataclass_named_budget_may_have_another_meaning(bus):
    from dataclasses import dataclass

    @dataclass
    class Spends(Callback):
        budget: int = 500

        def on_log(self) -> None: ...

    bus.attach(Spends())
    assert bus.isolation.meters == {}
