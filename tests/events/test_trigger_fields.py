"""Fields of callbacks that hold a trigger: other values are refused when the callback is made or attached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.trainers import net_trainer
from trainbus import (
    SWA,
    Callback,
    Checkpoint,
    CollectGarbage,
    EmptyCache,
    Evaluate,
    Freeze,
    Log,
    Trigger,
    WatchModules,
    at,
    at_end,
    every,
    never,
)
from trainbus.events import ArgumentError
from trainbus.events.errors import SubscriptionError

OWN: dict[str, Callable[[Any], Any]] = {
    "CollectGarbage(trigger": CollectGarbage,
    "EmptyCache(trigger": EmptyCache,
    "WatchModules(trigger": WatchModules,
    "Log(trigger": Log,
    "Evaluate(trigger": Evaluate,
    "Checkpoint(trigger": Checkpoint,
    "SWA(trigger": lambda value: SWA(trigger=value),
    "Freeze(until": lambda value: Freeze("head", until=value),
}


@pytest.mark.parametrize("label", OWN)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (500, "it is not a trigger. Write every(500)."),
        (0.5, "it is not a trigger. Write every(0.5)."),
        ("10min", "it is not a trigger. Write every('10min')."),
        ("every(500)", "a text is not a trigger. Leave out the quotes: every(500)."),
        ("soon", "a text is not a trigger. Pass one, such as every(500)"),
        (True, "bool is not a trigger. Pass one, such as every(500)"),
        (None, "NoneType is not a trigger. Pass one, such as every(500)"),
        (0, "it is not a trigger, and every(0): the interval is not above 0."),
        (-3, "it is not a trigger, and every(-3): the interval is not above 0."),
        (2.5, "it is not a trigger, and every(2.5) is not a whole number of steps."),
        (every, "function is not a trigger. Pass one, such as every(500)"),
    ],
    ids=lambda value: "function" if value is every else repr(value),
)
def test_other_values_are_refused_with_the_remedy(label: str, value: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        OWN[label](value)
    assert str(caught.value).startswith(f"{label}={value!r}): {text}")


@dataclass
class Own(Callback):
    trigger: Trigger = field(default_factory=never)
    until: Trigger | None = None
    steps: Trigger | int = 5
    interval: int = 3

    def on_step_end(self) -> None:
        """Do nothing."""


@dataclass
class Unset(Callback):
    trigger: Trigger

    def __init__(self) -> None:
        """Leave the field without a value."""

    def on_step_end(self) -> None:
        """Do nothing."""


def test_fields_of_other_callbacks_are_checked_when_they_are_attached(tmp_path: Path) -> None:
    with pytest.raises(SubscriptionError, match=r"Own\(trigger=5\): it is not a trigger. Write every\(5\)\."):
        net_trainer(tmp_path, Own(trigger=5))  # type: ignore[arg-type]
    with pytest.raises(SubscriptionError, match=r"Own\(until='1h'\): it is not a trigger. Write every\('1h'\)\."):
        net_trainer(tmp_path, Own(until="1h"))  # type: ignore[arg-type]
    for accepted in (Own(), Own(until=at(3)), Own(steps=at(3)), Unset()):
        net_trainer(tmp_path, accepted)


@pytest.mark.parametrize("make", [CollectGarbage, EmptyCache, WatchModules, lambda trigger: SWA(trigger=trigger)])
def test_triggers_of_cost_are_refused_where_no_cost_is_measured(make: Any) -> None:
    with pytest.raises(ArgumentError, match="does not measure the cost of its work"):
        make(every(5) | every("auto", overhead=0.1))


@pytest.mark.parametrize("trigger", [every(1, "epoch"), every(5) | every(2, "epochs")], ids=repr)
def test_triggers_of_epochs_are_refused_where_only_steps_count(trigger: Trigger) -> None:
    with pytest.raises(
        ArgumentError, match=r'"epoch"\) is due at the end of an epoch, and the callback works in steps'
    ):
        WatchModules(trigger)


def test_a_unit_that_is_no_text_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"every\(10, None\): the unit is not a text"):
        every(10, None)  # type: ignore[arg-type]


def measured(built: Any) -> list[int]:
    return [entry["step"] for entry in built.state.log_history if "weights/head" in entry]


@pytest.mark.parametrize(("trigger", "steps"), [(at_end(), [6]), (every(4) | at_end(), [4, 6]), (every(0.5), [3, 6])])
def test_modules_are_measured_when_the_trigger_is_due(tmp_path: Path, trigger: Trigger, steps: list[int]) -> None:
    built = net_trainer(tmp_path, WatchModules(trigger))
    built.train()
    assert measured(built) == steps


class Clock(Callback):
    """Lets a minute of training pass in each step."""

    def on_step_begin(self, state: Any) -> None:
        state.seconds += 60.0


def test_time_counts_from_the_last_measurement(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, Clock(), WatchModules(every("2min")))
    built.train()
    assert measured(built) == [3, 5], "the callback reads the time before the clock advances"


def test_time_counts_from_the_last_average(tmp_path: Path) -> None:
    average = SWA(start=0.0, trigger=every("2min"))
    net_trainer(tmp_path, Clock(), average).train()
    assert average.count == 3


def test_a_step_counts_once_in_the_average(tmp_path: Path) -> None:
    average = SWA(start=0.0, trigger=every(2) | every(1, "epoch"))
    net_trainer(tmp_path, average, max_steps=8).train()  # epochs end at steps 4 and 8
    assert average.count == 4
