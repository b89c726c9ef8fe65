"""Annotations of handlers are checked when a callback is attached, and never refused without certainty."""

from __future__ import annotations

import functools
import sys
import typing  # noqa: F401  # annotations below, as text, name it
from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Annotated, Any, NewType, Protocol, TypedDict, TypeVar

import pytest
import torch
import transformers
from torch import nn

import trainbus
from trainbus.engine.run import Run
from trainbus.events import CATALOG, Callback, Event, Param, SubscriptionError, TrainerControl, TrainerState
from trainbus.events.annotations import contradictions, short_type

if TYPE_CHECKING:
    pass

T = TypeVar("T")
Logs = NewType("Logs", dict)
Alias = dict[str, float]


class LogsDict(TypedDict):
    loss: float


class HasItems(Protocol):
    def items(self) -> Iterable[Any]: ...


class MyModel(nn.Module):
    pass


class Mixin:
    """A class that a model may also inherit from."""


class MyArguments(trainbus.TrainingArguments):
    pass


def handler(parameter: str, annotation: Any) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def handle(self, {parameter}): pass", globals(), scope)
    scope["handle"].__annotations__[parameter] = annotation
    return scope["handle"]


def attach(bus: Any, event: str, parameter: str, annotation: Any, base: type = Callback) -> None:
    bus.attach(type("Plugin", (base,), {event: handler(parameter, annotation)})())


WRONG = [
    ("on_log", "logs", int, "dict[str, Any]"),
    ("on_log", "logs", "int", "dict[str, Any]"),
    ("on_log", "logs", "list[float]", "dict[str, Any]"),
    ("on_log", "logs", "typing.Optional[str]", "dict[str, Any]"),
    ("on_log", "logs", "int | str", "dict[str, Any]"),
    ("on_log", "logs", Annotated[int, "of logs"], "dict[str, Any]"),
    ("on_log", "logs", None, "dict[str, Any]"),
    ("on_log", "logs", TrainerState, "dict[str, Any]"),
    ("on_log", "state", TrainerControl, "TrainerState"),
    ("on_log", "state", "dict[str, Any]", "TrainerState"),
    ("on_log", "control", "TrainerState", "TrainerControl"),
    ("on_log", "run", "TrainerState", "Run"),
    ("on_log", "args", dict, "TrainingArguments"),
    ("on_log", "model", "Run", "Module"),
    ("on_step_end", "loss", float, "Tensor"),
    ("on_step_end", "loss", "float", "Tensor"),
    ("on_step_end", "grad_norm", str, "Tensor | float | None"),
    ("on_save", "checkpoint", str, "Checkpoint"),
    ("on_log_due", "requested_by", "list[str]", "frozenset[str]"),
    ("on_evaluate_dataset", "dataset_name", int, "str"),
    ("on_exception", "exception", str, "BaseException"),
]


@pytest.mark.parametrize(("event", "parameter", "annotation", "expected"), WRONG)
def test_wrong_annotation_is_refused_with_the_expected_type(bus, event, parameter, annotation, expected):
    with pytest.raises(SubscriptionError) as refusal:
        attach(bus, event, parameter, annotation)
    text = str(refusal.value)
    assert text.startswith(f"Plugin.{event} annotates {parameter!r} as ")
    assert text.endswith(f"but {event} passes {expected}. Write `{parameter}: {expected}`.")
    assert bus.subscribers == {}


RIGHT = [
    ("logs", dict),
    ("logs", dict[str, Any]),
    ("logs", "dict[str, float]"),
    ("logs", "Alias"),
    ("logs", Logs),
    ("logs", LogsDict),
    ("logs", Mapping),
    ("logs", "Mapping[str, Any]"),
    ("logs", MutableMapping[str, float]),
    ("logs", Iterable[str]),
    ("logs", HasItems),
    ("logs", Any),
    ("logs", object),
    ("logs", T),
    ("logs", "T"),
    ("logs", "typing.Optional[dict]"),
    ("logs", "dict[str, Any] | None"),
    ("logs", "typing.Union[int, dict]"),
    ("logs", Annotated[dict, "of logs"]),
    ("logs", "Nothing"),
    ("logs", "Nothing | int"),
    ("logs", "not even Python"),
    ("logs", "nowhere.Nothing"),
    ("logs", "1 / 0"),
    ("logs", "anything"),
    ("logs", 3),
    ("state", TrainerState),
    ("state", "TrainerState | None"),
    ("state", transformers.TrainerState),
    ("args", MyArguments),
    ("args", transformers.TrainingArguments),
    ("args", Mixin),
    ("control", transformers.TrainerControl),
    ("model", MyModel),
    ("model", nn.Linear),
    ("model", Mixin),
    ("model", "transformers.PreTrainedModel"),
    ("optimizer", torch.optim.SGD),
    ("lr_scheduler", torch.optim.lr_scheduler.LambdaLR),
    ("train_dataloader", int),
    ("run", Run),
    ("run", "Any"),
]


@pytest.mark.parametrize(("parameter", "annotation"), RIGHT)
def test_annotation_that_may_be_right_is_accepted(bus, parameter, annotation):
    attach(bus, "on_log", parameter, annotation)
    assert bus.has_handlers("on_log")


@pytest.mark.parametrize(
    ("event", "parameter", "annotation"),
    [
        ("on_step_end", "loss", "torch.Tensor"),
        ("on_step_end", "loss", nn.Parameter),
        ("on_step_end", "grad_norm", float),
        ("on_step_end", "grad_norm", torch.Tensor),
        ("on_step_end", "learning_rate", int),
        ("on_gradients", "learning_rate", "typing.Optional[float]"),
        ("on_exception", "exception", KeyboardInterrupt),
        ("on_exception", "exception", Exception),
    ],
)
def test_annotation_of_a_step_that_may_be_right_is_accepted(bus, event, parameter, annotation):
    attach(bus, event, parameter, annotation)


def test_functions_are_checked_too(bus):
    def report(logs: int) -> None:
        """Never called."""

    with pytest.raises(SubscriptionError, match=r"report \(at on_log\) annotates 'logs' as int"):
        bus.on("on_log", report)
    assert not bus.has_handlers("on_log")


def test_a_handler_with_kwargs_is_checked_too(bus):
    class Plugin(Callback):
        def on_log(self, args: Any, state: Any, control: Any, logs: int = 0, **kwargs: Any) -> None: ...

    with pytest.raises(SubscriptionError, match=r"Plugin\.on_log annotates 'logs' as int"):
        bus.attach(Plugin())


def test_a_decorated_handler_is_checked_by_its_own_annotations(bus):
    def twice(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            function(*args, **kwargs)

        return wrapper

    class Plugin(Callback):
        @twice
        def on_log(self, logs: int) -> None: ...

    with pytest.raises(SubscriptionError, match="annotates 'logs' as int"):
        bus.attach(Plugin())


def test_an_own_parameter_and_the_return_value_may_have_any_annotation(bus):
    def report(logs: dict, sink: int = 3) -> int:
        return sink

    bus.on("on_log", report)


def test_other_callables_are_checked_where_they_have_annotations(bus):
    class Report:
        logs: int = 3

        def __call__(self, logs: dict) -> None: ...

    class Wrong:
        def __call__(self, logs: int) -> None: ...

    bus.on("on_log", Report())
    bus.on("on_log", functools.partial(lambda logs, sink: None, sink=3))
    bus.on("on_log", print)
    with pytest.raises(SubscriptionError, match="annotates 'logs' as int"):
        bus.on("on_log", Wrong())


def test_a_foreign_callback_with_a_wrong_annotation_only_warns(bus, caplog):
    class Foreign(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: int = 0, **kwargs: Any) -> None: ...

    bus.attach(Foreign())
    (record,) = caplog.records
    assert "Foreign.on_log annotates 'logs' as int, but on_log passes dict[str, Any]" in record.getMessage()
    assert bus.has_handlers("on_log")


def test_a_typical_foreign_callback_does_not_warn(bus, caplog):
    class Foreign(transformers.TrainerCallback):
        def on_step_end(
            self,
            args: transformers.TrainingArguments,
            state: transformers.TrainerState,
            control: transformers.TrainerControl,
            model: transformers.PreTrainedModel | None = None,
            **kwargs: Any,
        ) -> None: ...

    bus.attach(Foreign())
    assert caplog.records == []


def test_parameters_of_a_custom_event_are_checked_if_they_have_a_type(bus):
    bus.declare(Event("on_spike", "A spike.", (Param("height", "float", "Its height."), "name")))
    assert bus.signals["on_spike"].event.param_names == ("height", "name")
    bus.attach(type("Named", (Callback,), {"on_spike": handler("name", int)})())
    with pytest.raises(SubscriptionError, match="passes float"):
        bus.attach(type("High", (Callback,), {"on_spike": handler("height", str)})())


def test_a_type_that_is_not_imported_is_not_checked(monkeypatch):
    monkeypatch.delitem(sys.modules, "trainbus.engine.run")
    assert contradictions(handler("run", TrainerState), CATALOG["on_log"].all_params) == []


def test_types_are_shown_without_modules():
    assert short_type("torch.Tensor | float | None") == "Tensor | float | None"
    assert short_type("dict[str, Any]") == "dict[str, Any]"


def test_keyword_only_positional_three_are_given_by_name(run):
    class Plugin(Callback):
        def on_log(self, *_: Any, logs: dict[str, Any], state: TrainerState, control: Any, **kwargs: Any) -> None:
            self.seen = _, logs, state, control, kwargs

    plugin = Plugin()
    run.bus.attach(plugin)
    run.bus.announce("on_log")
    positional, logs, state, control, others = plugin.seen
    assert (positional, logs, state, control) == ((), run.logs, run.state, run.control)
    assert others["args"] == run.args
