"""The filters `every=`, `once=`, `before=` and `after=`, which choose when a subscribed function is called.

A filter compares its value with the number of the current step, epoch or announcement. In `before=` and `after=`, only
an integer is a filter, such as `before=100`. An id of a callback, such as `before="checkpoint"`, sets the handler
order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .catalog import Clock
from .errors import SubscriptionError
from .handlers import Call
from .stages import names


def filter_of(
    every: int | None, once: int | None, before: int | None, after: int | None
) -> Callable[[int], bool] | None:
    """Return a function that receives a count and returns whether to call the handler; None if there is no filter.

    The count is the number of the step, epoch or announcement, from 1.

    Raises:
        SubscriptionError: if a filter is not a whole number, if the filters exclude every count, or if the caller
            combines `once` with another filter.
    """
    bounds = {"every": every, "once": once, "before": before, "after": after}
    for name, value in bounds.items():
        smallest = 0 if name == "after" else 1
        if value is not None and not isinstance(value, int):
            raise SubscriptionError(f"{name}={value!r} is not a whole number. Write one, such as {name}=10.")
        if value is not None and value < smallest:
            raise SubscriptionError(f"{name}={value} is never met: counts begin at 1. Set it to {smallest} or more.")
    if once is not None and (every is not None or before is not None or after is not None):
        raise SubscriptionError("once= cannot be combined with every=, before= or after=. Remove the others.")
    if once is not None:
        return lambda count: count == once
    if every is None and before is None and after is None:
        return None
    period, start = every or 1, after or 0
    if before is not None and start + period >= before:
        raise SubscriptionError(
            f"before={before} is never met: the first count is {start + period}. Set before to more than that."
        )
    return lambda count: count > start and (count - start) % period == 0 and (before is None or count < before)


def filtered(call: Call, keep: Callable[[int], bool], clock: Clock) -> Call:
    """Wrap a handler so that it runs only at some counts.

    Args:
        call: the compiled handler.
        keep: a function from `filter_of`. It receives a count and returns whether the handler runs.
        clock: `Event.clock`: whether the filter counts steps, epochs or announcements.
    """
    calls = itertools.count(1)

    def when_due(run: Any, extras: Mapping[str, Any]) -> Any:
        return call(run, extras) if keep(run.count(clock, next(calls))) else None

    return when_due


def number_in(bound: int | str | Iterable[str] | None) -> int | None:
    """Return `bound`, the value of `before=` or `after=`, if it is a number. Otherwise return None."""
    return bound if isinstance(bound, (int, float)) else None


def ids_in(bound: int | str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the ids of callbacks in `bound`, the value of `before=` or `after=`; () for a number or None."""
    return () if bound is None or isinstance(bound, (int, float)) else names(bound)
