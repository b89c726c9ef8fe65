"""Filters of subscribed functions: at which counts one is called."""

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
    """Return which counts pass the filters of a subscribed function, or None if it has none."""
    bounds = {"every": every, "once": once, "before": before, "after": after}
    for name, value in bounds.items():
        if value is not None and value < (0 if name == "after" else 1):
            raise SubscriptionError(f"{name}={value} can never be met: counts begin at 1.")
    if once is not None and (every is not None or before is not None or after is not None):
        raise SubscriptionError("once= names the one count that is meant; it goes with no other filter.")
    if once is not None:
        return lambda count: count == once
    if every is None and before is None and after is None:
        return None
    period, start = every or 1, after or 0
    if before is not None and start + period >= before:
        raise SubscriptionError(f"before={before} can never be met: the first count would be {start + period}.")
    return lambda count: count > start and (count - start) % period == 0 and (before is None or count < before)


def filtered(call: Call, keep: Callable[[int], bool], clock: Clock) -> Call:
    """Return a call that passes on only the counts that `keep` keeps, as the event's clock counts them."""
    calls = itertools.count(1)

    def when_due(run: Any, extras: Mapping[str, Any]) -> Any:
        return call(run, extras) if keep(run.count(clock, next(calls))) else None

    return when_due


def number_in(bound: int | str | Iterable[str] | None) -> int | None:
    """Return what `before=` or `after=` says of counts; None if it names callbacks."""
    return bound if isinstance(bound, int) else None


def ids_in(bound: int | str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the callbacks that `before=` or `after=` names; none if it is a count."""
    return () if bound is None or isinstance(bound, int) else names(bound)
