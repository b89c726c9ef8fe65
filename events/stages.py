"""Order by purpose: each handler runs in a named stage, and inside a stage in the order of attachment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Stage(IntEnum):
    """What a handler is for. Lower stages run first, whatever the order of the callback list."""

    PREPARE = 10
    """Make things exist: wrap the model, open files, do the work that an event announces."""
    MEASURE = 20
    """Read the run and write metrics, so that deciders find them."""
    DECIDE = 30
    """Raise or veto flags of the control. The stage of every callback that names none."""
    ACT = 40
    """Do the work that a flag asked for."""
    REPORT = 50
    """Tell the outside: print, upload, draw. Reporters see what all others wrote."""
    RELEASE = 60
    """Rotate, close, free."""


@dataclass(frozen=True)
class Order:
    """Where one handler wants to run; what is None or empty is left to the callback's class."""

    stage: Stage | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


ORDER_MARK = "__trainbus_order__"


def order(
    stage: Stage | None = None, *, before: str | Iterable[str] = (), after: str | Iterable[str] = ()
) -> Callable[[F], F]:
    """Mark a handler with its own stage, or with the ids of callbacks it must run before or after.

    Use it on a method of a callback, where it overrides the class attribute `stage` for this event alone:

        class Best(Callback):
            @order(Stage.PREPARE)
            def on_evaluate(self, metrics): ...

    `before=` and `after=` name callback ids and hold within a stage: an order that contradicts the stages, names an
    unknown callback or runs in a circle is refused when the order is resolved.
    """

    def mark(handler: F) -> F:
        setattr(handler, ORDER_MARK, Order(stage, names(before), names(after)))
        return handler

    return mark


def names(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return one id or several as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)
