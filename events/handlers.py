"""Handlers: how a function is inspected once, at attachment, and called with what it named from then on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from .catalog import CATALOG, COMMON, POSITIONAL, Event
from .errors import SubscriptionError, nearest

Handler = Callable[..., Any]
Call = Callable[[Any, Mapping[str, Any]], Any]
"""A compiled handler: called with the run and the values that this announcement carries beyond it."""


def compile_handler(
    handler: Handler, event: Event, label: str, *, lenient: bool = False
) -> tuple[Call, frozenset[str]]:
    """Return a call that gives `handler` what it names, or all if it takes `**kwargs`, and the names themselves.

    Args:
        handler: a bound method or a function.
        event: the event it hears.
        label: how errors name it, as `Metrics.on_log`.
        lenient: for callbacks of another library, leave unknown parameters that have a default alone.

    Raises:
        SubscriptionError: if a parameter is not one of the event's, with the nearest name. One that has a default and
            looks like no misspelling is the handler's own affair.
    """
    known = (*COMMON, *event.params)
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # some builtins and extension functions have no signature: give them everything
        return _call_as_transformers_does(handler, known), frozenset()

    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    plain = [parameter for parameter in parameters if parameter.kind not in _VARIADIC]
    positional = [parameter for parameter in plain if parameter.kind in _POSITIONAL]
    variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    if takes_all and _is_positional(positional, variadic, known):
        beyond = [parameter for parameter in plain if parameter not in positional[: len(POSITIONAL)]]
        for parameter in beyond:
            if parameter.name not in known and parameter.default is parameter.empty:
                raise SubscriptionError(_unknown(parameter.name, event, label, known))
        return _call_as_transformers_does(handler, known), frozenset(parameter.name for parameter in beyond)

    names = []
    for parameter in plain:
        if parameter.name in known and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(parameter.name)
        elif parameter.default is parameter.empty or not (lenient or _is_foreign(parameter.name, known)):
            raise SubscriptionError(_unknown(parameter.name, event, label, known))
    if takes_all or names != [parameter.name for parameter in positional]:
        return _call_by_name(handler, known if takes_all else tuple(names)), frozenset(names)
    return _call_in_order(handler, tuple(names)), frozenset(names)


_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


def _is_positional(positional: list[inspect.Parameter], variadic: bool, known: tuple[str, ...]) -> bool:
    """Say whether a handler with `**kwargs` takes args, state and control by position, under whatever names."""
    first = [parameter.name for parameter in positional[: len(POSITIONAL)]]
    if tuple(first) == POSITIONAL:
        return True
    return not any(name in known for name in first) and (len(first) == len(POSITIONAL) or variadic)


def _is_foreign(name: str, known: tuple[str, ...]) -> bool:
    """Say whether a name is neither a misspelt parameter nor one that other events have."""
    return nearest(name, known) == "." and not any(name in other.params for other in CATALOG.values())


def _call_as_transformers_does(handler: Handler, known: tuple[str, ...]) -> Call:
    rest = tuple(name for name in known if name not in POSITIONAL)

    def call(run: Any, extras: Mapping[str, Any]) -> Any:
        return handler(run.args, run.state, run.control, **dict(_values(run, rest, extras)))

    return call


def _call_by_name(handler: Handler, names: tuple[str, ...]) -> Call:
    def call(run: Any, extras: Mapping[str, Any]) -> Any:
        return handler(**dict(_values(run, names, extras)))

    return call


def _call_in_order(handler: Handler, names: tuple[str, ...]) -> Call:
    """The usual case, and the one that costs least: all that a step announces is read off the run at once."""
    if not names:
        return lambda run, extras: handler()
    read = attrgetter(*names)
    single = len(names) == 1

    def call(run: Any, extras: Mapping[str, Any]) -> Any:
        if extras:
            return handler(*(value for _, value in _values(run, names, extras)))
        return handler(read(run)) if single else handler(*read(run))

    return call


def _values(run: Any, names: tuple[str, ...], extras: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in names:
        yield name, extras[name] if name in extras else getattr(run, name)


def _unknown(name: str, event: Event, label: str, known: tuple[str, ...]) -> str:
    elsewhere = [other.name for other in CATALOG.values() if name in other.params]
    if elsewhere:
        return f"{label} asks for {name!r}, which only {', '.join(elsewhere)} can give."
    return (
        f"{label} asks for {name!r}, which {event.name} cannot give{nearest(name, known)} It has: {', '.join(known)}."
    )
