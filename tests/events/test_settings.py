"""Settings of a callback, its handlers and its events: a wrong one is refused with the place and the remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from trainbus.events import Callback, Event, Param, SubscriptionError
from trainbus.events.settings import problems_of_settings
from trainbus.events.subscribers import refuse_wrong_settings


def of(**attributes: Any) -> Callback:
    """Return a callback whose class has these attributes."""
    return type("Mine", (Callback,), {"on_log": lambda self: None, **attributes})()


OTHER_KINDS = {
    "id": [3, 0, ("a",)],
    "before": [3, [3]],
    "after": [3],
    "local": ["here", 1],
    "previews": ["x"],
    "auto": ["yes"],
    "arguments": [3, "max_steps"],
    "instead_of": [3, ("Log",)],
    "state_version": ["two", 0, True, 1.5, None],
    "capabilities": [3, ["x"]],
    "conflicts_with": [3, (int,)],
    "variant": [3],
    "stage": ["REPORT", 3],
    "on_error": [True, None, lambda self, error: None],
    "events": [3, "on_spike", Event("on_spike", "x"), ("on_spike",), None],
    "requires": [3, None],
    "state_dict": [{}],
    "load_state_dict": [3],
    "migrate": ["x"],
    "has": ["x"],
    "argument_overrides": [{}],
    "from_arguments": [3],
}
"""Setting -> values with another meaning."""


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OTHER_KINDS.items() for value in values])
def test_a_setting_with_another_meaning_is_refused_with_its_name(bus, name, value):
    with pytest.raises(SubscriptionError, match=rf"Mine\.{name} "):
        bus.attach(of(**{name: value}))
    assert not bus.subscribers


@pytest.mark.parametrize("name", ["id", "on_error"])
def test_a_field_without_a_default_is_judged_by_its_annotation(name):
    cls = dataclass(type("Mine", (Callback,), {"__annotations__": {name: "int"}, "on_log": lambda self: None}))
    [problem] = problems_of_settings(object.__new__(cls))
    assert problem.startswith(f"Mine.{name} is declared as int. It takes a text.")
    assert "rename yours" in problem


def test_fields_that_narrow_a_setting_are_accepted(bus):
    @dataclass
    class Narrow(Callback):
        on_error: str = "warn"
        id: str | None = None
        budget: int = 3  # another meaning is allowed here, because only a text is a budget
        kept: dict[str, int] = field(default_factory=dict)

        def on_log(self): ...

    bus.attach(Narrow())
    bus.attach(Narrow(id="second"))
    assert [*bus.subscribers] == ["Narrow", "second"]


def test_a_foreign_callback_may_give_all_names_another_meaning(bus):
    base = type("TrainerCallback", (), {"on_log": lambda self, args, state, control, **kwargs: None})
    own = {name: values[0] for name, values in OTHER_KINDS.items()}
    bus.attach(type("Foreign", (base,), {**own, "on_log": lambda self, args, state, control, **kwargs: None})())
    assert [*bus.subscribers] == ["Foreign"]


def test_one_error_names_all_wrong_settings():
    with pytest.raises(SubscriptionError) as raised:
        refuse_wrong_settings([of(id=3, local="x"), of(on_error="explode"), of(budget="3 parsecs")])
    said = str(raised.value)
    assert said.startswith("4 problems:")
    for part in ("Mine.id is 3", "Mine.local is 'x'", "Mine.on_error is 'explode'", "Mine.budget is '3 parsecs'"):
        assert part in said


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (lambda state, logs: None, r"Mine.on_log does not take `self`. Write `def on_log\(self, state, logs\)`"),
        (lambda: None, r"Write `def on_log\(self\)`"),
        (3, "Mine.on_log is 3, not a method"),
    ],
)
def test_a_handler_that_cannot_be_called_as_a_method_is_refused(bus, handler, says):
    with pytest.raises(SubscriptionError, match=says):
        bus.attach(of(on_log=handler))


def test_a_handler_of_none_turns_an_inherited_one_off(bus):
    bus.attach(of(on_log=None))
    assert not bus.hears("on_log")


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ("height", r"are a text. Write a tuple: \('height',\)"),
        ((3,), "has the parameter 3"),
        (("a", "a"), "'a' twice"),
        (("a b",), "has the parameter"),
        (("state",), "'state', which every handler may name already"),
    ],
)
def test_an_event_with_wrong_parameters_is_refused_where_it_is_written(params, says):
    with pytest.raises(SubscriptionError, match=says):
        Event("on_spike", "A spike.", params)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, r"on_spike is announced without 'height'. Write run.announce\('on_spike', height=...\)"),
        ({"heigth": 1.0}, "announced with 'heigth', which it does not declare; did you mean 'height'"),
        ({"height": 1.0, "state": 3}, "announced with 'state'"),
    ],
)
def test_an_announcement_with_wrong_values_names_the_parameter(bus, values, says):
    bus.attach(of(events=(Event("on_spike", "A spike.", (Param("height", "float"), "logs")),)))
    with pytest.raises(SubscriptionError, match=says):
        bus.announce_checked("on_spike", values)


def test_an_announcement_may_leave_out_what_the_run_has(bus, heard):
    bus.attach(of(events=(Event("on_spike", "A spike.", ("height", "logs")),)))
    bus.on("on_spike", lambda height: heard.append(height))
    bus.announce_checked("on_spike", {"height": 2.0})
    bus.announce_checked("on_log", {"logs": {}})
    assert heard == [2.0]


def test_a_callback_of_lightning_is_refused_with_the_adapter(bus):
    timer = type("Timer", (), {"__module__": "lightning.pytorch.callbacks", "on_fit_start": lambda self: None})
    with pytest.raises(SubscriptionError, match=r"write Lightning\(Timer\(...\)\)"):
        bus.attach(timer())
