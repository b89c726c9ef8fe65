"""Stages: each handler runs in a named stage, and inside a stage in the order of attachment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Stage(IntEnum):
    """The purpose of a handler. Lower stages run first. The order of the list of callbacks does not matter."""

    PREPARE = 10
    """Create things: wrap the model, open files, do the work that an event announces."""
    MEASURE = 20
    """Read the run and write metrics, before callbacks decide from them."""
    DECIDE = 30
    """Raise or veto flags of the control. The stage of every callback that sets no stage."""
    ACT = 40
    """Do the work that a flag requests."""
    REPORT = 50
    """Report: print, upload, draw. Handlers in REPORT see the values that all other callbacks wrote."""
    RELEASE = 60
    """Rotate checkpoints, close files, free memory."""


@dataclass(frozen=True)
class Order:
    """The order that one handler declares.

    None and empty values mean that the class attributes of the callback apply.
    """

    stage: Stage | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


ORDER_MARK = "__trainbus_order__"


def order(
    stage: Stage | None = None, *, before: str | Iterable[str] = (), after: str | Iterable[str] = ()
) -> Callable[[F], F]:
    """Mark a handler with its own stage, or with the ids of callbacks it must run before or after.

    Use it on a method of a callback. It overrides the class attribute `stage` for this event:

        class Best(Callback):
            @order(Stage.PREPARE)
            def on_evaluate(self, metrics: dict[str, Any]) -> None: ...

    `before=` and `after=` name ids of callbacks of the same stage. An order that contradicts the stages, names an
    unknown callback or forms a cycle is an error when the order is resolved.
    """

    def mark(handler: F) -> F:
        setattr(handler, ORDER_MARK, Order(stage, names(before), names(after)))
        return handler

    return mark


def names(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return a tuple of ids, from one id or several."""
    return (value,) if isinstance(value, str) else tuple(value)
