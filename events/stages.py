"""Stages: each handler runs in a named stage.

The handlers of a stage run in the order of attachment, unless `before=` or `after=` sets another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from .errors import SubscriptionError
from .keywords import checked_keywords

F = TypeVar("F", bound=Callable[..., Any])


class Stage(IntEnum):
    """The purpose of a handler. Stages with lower numbers run first, whatever the order of the list of callbacks.

    In `on_close` and `on_end`, handlers and stages run in reverse order.
    """

    PREPARE = 10
    """Create things: wrap the model, open files, do work that later handlers need."""
    MEASURE = 20
    """Read values of the run and write metrics, before callbacks in DECIDE read these metrics."""
    DECIDE = 30
    """Request or veto flags of the control. Callbacks that set no stage run in DECIDE."""
    ACT = 40
    """Do the work that a flag requests."""
    REPORT = 50
    """Print, upload, plot. Handlers in REPORT see all values that callbacks in earlier stages wrote."""
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


@checked_keywords
def order(
    stage: Stage | None = None, *, before: str | Iterable[str] = (), after: str | Iterable[str] = ()
) -> Callable[[F], F]:
    """Give one handler its own stage, or its own place before or after the handlers of other callbacks.

    Use this decorator on a method of a callback. It overrides the class attributes `stage`, `before` and `after` for
    this event:

        class Best(Callback):
            @order(Stage.PREPARE)
            def on_evaluate(self, metrics: dict[str, Any]) -> None: ...

    `before=` and `after=` name ids of callbacks of the same stage. The trainer raises an error for an order that
    contradicts the stages, names an unknown callback or forms a cycle.

    Raises:
        SubscriptionError: if the decorator is used without arguments.
    """
    if callable(stage):
        raise SubscriptionError(
            f"`@order` above {getattr(stage, '__name__', stage)} has no arguments. Write `@order(Stage.REPORT)`, "
            '`@order(before="Log")` or `@order(after="Log")`.'
        )

    def mark(handler: F) -> F:
        setattr(handler, ORDER_MARK, Order(stage, names(before), names(after)))
        return handler

    return mark


def names(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the ids of `before=` or `after=` as a tuple. `value` is one id or several ids."""
    return (value,) if isinstance(value, str) else tuple(value)
