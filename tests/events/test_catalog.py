"""The catalogue, the base class and the record of a run agree."""

from __future__ import annotations

import inspect
import re

import pytest
import transformers
from transformers.trainer_callback import CallbackHandler

from trainbus.engine.run import Run
from trainbus.events import CATALOG, COMMON_NAMES, EVENTS, Callback, Clock, Event, Kind
from trainbus.events.catalog import ALL_HANDLERS_RUN, LAST_IN_FIRST_OUT, POSITIONAL
from trainbus.events.event_methods import EventMethods


def handlers_of(cls: type) -> dict[str, object]:
    return {name: value for name, value in vars(cls).items() if name.startswith("on_") and inspect.isfunction(value)}


def test_base_class_has_one_method_per_event_in_the_order_of_the_catalogue():
    assert list(handlers_of(EventMethods)) == [event.name for event in EVENTS]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_method_docstring_equals_the_catalogue(event):
    assert handlers_of(EventMethods)[event.name].__doc__ == event.doc


def test_page_of_the_documentation_lists_the_events_as_the_catalogue_does(root):
    page = (root / "docs" / "events.md").read_text(encoding="utf-8")
    listed = re.findall(r"^### `(on_\w+)`\n\n(.+)$", page, re.MULTILINE)
    assert listed == [(event.name, event.doc) for event in EVENTS]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_default_method_accepts_any_argument_and_returns_none(event):
    assert getattr(Callback(), event.name)(1, 2, 3, logs={}) is None


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_entry_is_well_formed(event):
    assert re.fullmatch(r"on(_[a-z]+)+", event.name)
    assert re.fullmatch(r"[A-Z][^\n]*\.", event.doc)
    names = [*COMMON_NAMES, *event.param_names]
    assert len(set(names)) == len(names), "a parameter is named twice"
    assert event.kind is Kind.WORK or not event.name.endswith("_due")


def test_names_are_unique():
    assert len(CATALOG) == len(EVENTS)


def test_events_shared_with_transformers_are_all_of_its_events_under_its_names():
    shared = {event.name for event in EVENTS if event.origin == "transformers"}
    assert shared == set(handlers_of(transformers.TrainerCallback))
    assert len(shared) == 16


def test_handlers_can_name_every_argument_of_transformers():
    given = set(re.findall(r"(\w+)=self\.", inspect.getsource(CallbackHandler.call_event)))
    assert {"model", "optimizer", "eval_dataloader"} <= given, "the source of transformers reads differently now"
    assert given <= set(COMMON_NAMES)


@pytest.mark.parametrize(
    ("event", "param"), [("on_log", "logs"), ("on_evaluate", "metrics"), ("on_predict", "metrics")]
)
def test_events_give_the_arguments_of_transformers(event, param):
    assert param in CATALOG[event].param_names


def test_every_parameter_is_a_field_of_the_run():
    known = set(Run.__annotations__)
    known |= {name for name, value in vars(Run).items() if isinstance(value, property)}
    assert {*COMMON_NAMES, *(param for event in EVENTS for param in event.param_names)} <= known


def test_special_events_and_positional_parameters_exist():
    assert set(CATALOG) >= ALL_HANDLERS_RUN >= LAST_IN_FIRST_OUT
    assert COMMON_NAMES[: len(POSITIONAL)] == POSITIONAL


def test_events_are_values():
    assert Event("on_x", "An x.") == Event("on_x", "An x.", (), Kind.FACT, Clock.CALLS)
    assert len({Event("on_x", "An x."), Event("on_x", "An x.")}) == 1
