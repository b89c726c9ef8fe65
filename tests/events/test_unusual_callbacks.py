"""Callbacks in unusual but valid styles are called. Others are refused with the reason."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from trainbus.events import Callback, EventBus, SubscriptionError, TrainerControl, TrainerState

SEEN: list[Any] = []


@dataclass(frozen=True)
class Frozen(Callback):
    values: list[int] = field(default_factory=list)

    def on_step_end(self, state: Any) -> None:
        SEEN.append(state.global_step)


class Slots:
    __slots__ = ("done",)

    def on_step_end(self, state: Any) -> None:
        SEEN.append(state.global_step)


class LambdaOfTheClass(Callback):
    on_step_end = lambda self, state: SEEN.append(state.global_step)  # noqa: E731


class LambdaOfTheInstance(Callback):
    def __init__(self) -> None:
        self.on_step_end = lambda state: SEEN.append(state.global_step)


class PartialMethod(Callback):
    def add(self, factor: int, state: Any) -> None:
        SEEN.append(factor * state.global_step)

    on_step_end = functools.partialmethod(add, 1)


class BoundByName(Callback):
    def __init__(self) -> None:
        self.on_step_end = functools.partial(self.add, factor=1)

    def add(self, state: Any, factor: int) -> None:
        SEEN.append(factor * state.global_step)


class Static(Callback):
    @staticmethod
    def on_step_end(state: Any) -> None:
        SEEN.append(state.global_step)


class OfTheClass(Callback):
    @classmethod
    def on_step_end(cls, state: Any) -> None:
        SEEN.append(state.global_step)


class Property(Callback):
    @property
    def on_step_end(self) -> Callable[..., None]:
        return lambda state: SEEN.append(state.global_step)


class PositionOnly(Callback):
    def on_step_end(self, state: Any, /) -> None:
        SEEN.append(state.global_step)


class PositionOnlyAndRest(Callback):
    def on_step_end(self, state: Any, /, control: Any, *, args: Any) -> None:
        assert isinstance(control, TrainerControl)
        assert args == "args"
        SEEN.append(state.global_step)


class PositionOnlyAndAll(Callback):
    def on_step_end(self, state: Any, /, **values: Any) -> None:
        assert "state" not in values
        assert values["args"] == "args"
        SEEN.append(state.global_step)


class Base(Callback):
    def on_step_end(self, state: Any) -> None:
        SEEN.append(state.global_step)


class Inherited(Base): ...


class Mixed(abc.ABC, Base): ...


class Point(NamedTuple):
    x: int = 1

    def on_step_end(self, state: Any) -> None:
        SEEN.append(state.global_step)


class EmptyList(list):  # type: ignore[type-arg]
    def on_step_end(self, state: Any) -> None:
        SEEN.append(state.global_step)


class EqualToNothing(Base):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare")

    __hash__ = None  # type: ignore[assignment]


class ObjectThatIsCalled(Callback):
    class Handler:
        def __call__(self, state: Any) -> None:
            SEEN.append(state.global_step)

    def __init__(self) -> None:
        self.on_step_end = self.Handler()


VALID = [
    *(Frozen, Slots, LambdaOfTheClass, LambdaOfTheInstance, PartialMethod, BoundByName, Static, OfTheClass, Property),
    *(PositionOnly, PositionOnlyAndRest, PositionOnlyAndAll, Inherited, Mixed, Point, EmptyList, EqualToNothing),
    ObjectThatIsCalled,
]


def bus() -> EventBus:
    run = SimpleNamespace(args="args", state=TrainerState(global_step=3), control=TrainerControl())
    for name in ("model", "processing_class", "tokenizer", "optimizer", "lr_scheduler", "train_dataloader"):
        setattr(run, name, None)
    for name in ("eval_dataloader", "batch", "loss", "outputs", "grad_norm", "learning_rate", "run"):
        setattr(run, name, None)
    return EventBus(run, run.control)


@pytest.mark.parametrize("kind", VALID, ids=lambda kind: kind.__name__)
def test_a_valid_style_is_called(kind: Any) -> None:
    SEEN.clear()
    made = bus()
    made.attach(kind())
    made.announce("on_step_end")
    assert SEEN == [3]


class TurnedOff(Base):
    on_step_end = None  # type: ignore[assignment]


def test_a_handler_that_is_none_is_not_called() -> None:
    SEEN.clear()
    made = bus()
    made.attach(TurnedOff())
    made.announce("on_step_end")
    assert SEEN == []


class Async(Callback):
    async def on_step_end(self) -> None: ...


class Generator(Callback):
    def on_step_end(self) -> Any:
        yield 1


class FailingProperty(Callback):
    @property
    def on_step_end(self) -> Any:
        raise RuntimeError("not ready")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Async(), "Async.on_step_end is an async function, so calling it does not run its body"),
        (Generator(), "Generator.on_step_end is a generator"),
        (FailingProperty(), "FailingProperty.on_step_end cannot be read: RuntimeError: not ready"),
        ("ema(decay=0.9)", r"is a text. Write texts of callbacks in the arguments: `TrainingArguments\(callbacks="),
        (Base, "Base is a class. Attach an instance"),
        (functools.partial(Base), "partial is not a callback"),
        (None, "NoneType is not a callback"),
    ],
)
def test_another_object_is_refused_with_the_reason(given: Any, said: str) -> None:
    with pytest.raises(SubscriptionError, match=said):
        bus().attach(given)


class Mixin:
    budget = "5%"

    def on_step_end(self, state: Any) -> None:
        SEEN.append(state.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": len(SEEN)}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Hides(Callback, Mixin): ...


class Overrides(Callback, Mixin):
    budget = None

    def on_step_end(self, state: Any) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TrainerCallback:
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...


class HidesInTransformers(TrainerCallback, Mixin): ...


class OfBothLibraries(Callback, TrainerCallback): ...


def test_a_mixin_that_the_base_class_hides_is_refused(bus: EventBus) -> None:
    names = r"Mixin\.budget, Mixin\.on_step_end, Mixin\.state_dict, Mixin\.load_state_dict"
    with pytest.raises(SubscriptionError, match=rf"Hides never uses {names}.*`class Hides\(Mixin, Callback\)`"):
        bus.attach(Hides())


def test_a_mixin_that_transformers_hides_causes_a_warning(bus: EventBus, caplog: pytest.LogCaptureFixture) -> None:
    bus.attach(HidesInTransformers())
    assert "HidesInTransformers never uses Mixin.on_step_end" in caplog.text


@pytest.mark.parametrize("kind", [Overrides, OfBothLibraries])
def test_a_mixin_that_nothing_hides_is_accepted(
    kind: type[Any], bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus.attach(kind())
    assert "never uses" not in caplog.text
