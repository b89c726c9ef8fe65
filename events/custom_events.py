"""Checks of custom events: the events that callbacks declare in the attribute `events`, and their announcements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .callback import Callback
from .catalog import Event
from .errors import SubscriptionError, nearest


def own_events(callback: object) -> tuple[Event, ...]:
    """Return the custom events that a `Callback` declares. For any other object, return an empty tuple.

    Raises:
        SubscriptionError: if the attribute `events` of the callback is not a tuple or list of `Event` objects.
    """
    declared: Any = callback.events if isinstance(callback, Callback) else ()
    if not isinstance(declared, (tuple, list)):
        raise SubscriptionError(
            f"{type(callback).__name__}.events is {declared!r}. Write a tuple of events: (Event(name, doc),)."
        )
    for event in declared:
        if not isinstance(event, Event):
            raise SubscriptionError(
                f"{type(callback).__name__}.events contains {event!r}, which is not an event. Write Event(name, doc)."
            )
    return tuple(declared)


def check_event(event: Event, known: Event | None) -> None:
    """Check that a callback can declare an event.

    Args:
        event: the event.
        known: the existing event with the same name; None if there is none.

    Raises:
        SubscriptionError: if the name is not an identifier that begins with `on_`, or if a different event has the
            name.
    """
    if not event.name.startswith("on_") or not event.name.isidentifier():
        raise SubscriptionError(
            f"The event name {event.name!r} does not begin with 'on_', or is not a name of Python. Rename it."
        )
    if known is not None and known != event:
        differing = [field.name for field in fields(event) if getattr(event, field.name) != getattr(known, field.name)]
        raise SubscriptionError(
            f"The event {event.name!r} ({known.doc.rstrip('.')}) exists already, with another value of "
            f"{', '.join(differing)}. Rename your event. If both mean the same, use the same `Event` object in both "
            "callbacks."
        )


def check_announced(event: Event, values: Mapping[str, Any], run: Any) -> None:
    """Check that the announcement of a custom event passes the parameters of the event, and no others.

    Args:
        event: the event.
        values: the values of the announcement, by the name of the parameter.
        run: the run. The announcement need not pass a parameter if the run has an attribute with the same name.

    Raises:
        SubscriptionError: if a parameter has no value, or if the announcement passes a parameter that the event does
            not declare.
    """
    name = event.name
    for value in values:
        if value not in event.param_names:
            raise SubscriptionError(
                f"{name} is announced with {value!r}, which it does not declare{nearest(value, event.param_names)} "
                f"Its parameters: {', '.join(event.param_names) or 'none'}."
            )
    missing = [param for param in event.param_names if param not in values and not hasattr(run, param)]
    if missing:
        raise SubscriptionError(
            f"{name} is announced without {missing[0]!r}. Write run.announce({name!r}, {missing[0]}=...)."
        )
