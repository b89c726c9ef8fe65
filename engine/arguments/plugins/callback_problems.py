"""Find, without a trainer, the problems that prevent attaching a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ....events.callback import Callback
from ....events.catalog import CATALOG, Event
from ....events.custom_events import check_event, own_events
from ....events.errors import SubscriptionError
from ....events.handlers import compile_handler
from ....events.isolation import refuse_thinning
from ....events.stages import ORDER_MARK, Order
from ....events.subscribers import budget_for, checked_on_error, inspect_subscriber


def is_callback(value: Any) -> bool:
    """Return whether a value is a callback: an instance of `Callback`, or any object with a handler."""
    return isinstance(value, Callback) or (
        not isinstance(value, type) and any(name.startswith("on_") and name != "on_error" for name in dir(value))
    )


def events_of(callbacks: Iterable[Any]) -> dict[str, Event]:
    """Return events by name: all events of the catalogue, and the events that callbacks or their classes declare."""
    found = dict(CATALOG)
    for callback in callbacks:
        with suppress(SubscriptionError):  # it is an error when the callback is attached
            found |= {event.name: event for event in own_events(callback)}
    return found


def problems_of(callback: Any, events: Mapping[str, Event], elsewhere: Iterable[str] = ()) -> list[str]:
    """Return the problems that prevent attaching a callback: wrong settings, events, parameters or annotations.

    A callback that requires another version of the callback interface (`requires`) also has a problem.

    Args:
        callback: an instance.
        events: the events by name, without the events that the callback declares itself.
        elsewhere: names of events that other plugins declare. Handlers of these events are accepted without a check
            of their parameters.
    """
    try:
        known = {**events, **{event.name: event for event in own_events(callback)}}
        record = inspect_subscriber(callback, [*known, *elsewhere])
    except SubscriptionError as error:
        return [str(error)]
    label, problems, stages = type(callback).__name__, [], []
    checks: list[Callable[[], object]] = [
        lambda: checked_on_error(callback, record.on_error, label),
        *(partial(check_event, event, CATALOG.get(event.name)) for event in own_events(callback)),
    ]
    for name, handler in record.handlers.items():
        if name not in known:
            continue
        mark: Order = getattr(handler, ORDER_MARK, Order())
        stages.append((known[name], mark.stage if mark.stage is not None else record.stage))
        checks.append(partial(compile_handler, handler, known[name], f"{label}.{name}", lenient=record.foreign))

    def check_budget() -> None:
        budget = budget_for(callback, label)
        if budget is not None and budget.remedy == "thin":
            refuse_thinning(label, stages)

    for check in (*checks, check_budget):
        try:
            check()
        except SubscriptionError as error:
            problems.append(str(error))
    return problems
