"""Handlers: inspect a function once, when it is attached, and then call it with the parameters that it names."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from .annotations import contradictions, short_type
from .catalog import CATALOG, POSITIONAL, Event
from .errors import SubscriptionError, nearest

logger = logging.getLogger(__name__)

Handler = Callable[..., Any]
Call = Callable[[Any, Mapping[str, Any]], Any]
"""A compiled handler. Its arguments are the run, and a dict of the values that only this announcement passes."""

_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


def compile_handler(
    handler: Handler, event: Event, label: str, *, lenient: bool = False, open_ended: bool = False
) -> tuple[Call, frozenset[str]]:
    """Compile a handler into a function that calls the handler with the parameters that the handler names.

    A handler with `**kwargs` receives all parameters. A handler may also have parameters that the event does not pass.
    Each of these parameters needs a default. Its name must not be similar to a parameter of the event, and must not be
    a parameter of another event. The rule for names does not apply to a handler in the style of transformers:
    `(self, args, state, control, ..., **kwargs)`.

    Args:
        handler: a bound method or a function.
        event: the event of the handler.
        label: the name of the handler in errors, such as `Metrics.on_log`.
        lenient: True for callbacks of other libraries. The handler may then have any parameter with a default. A wrong
            annotation then causes a warning instead of an error.
        open_ended: True: in a handler in the style of transformers, parameters that the event does not pass need no
            default.

    Returns:
        The function, and the names of the parameters that the handler names.

    Raises:
        SubscriptionError: if the handler is async, a generator, or a method without `self`; if a parameter breaks the
            rules above; or if an annotation contradicts the type of the event's parameter.
    """
    _refuse_suspended(handler, label)
    known = tuple(event.all_params)
    _refuse_without_self(handler, label, known)
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # some builtins and extension functions have no signature
        return _call_as_transformers_does(handler, known), frozenset()
    _check_annotations(handler, event, label, lenient)

    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    plain = [parameter for parameter in parameters if parameter.kind not in _VARIADIC]
    positional = [parameter for parameter in plain if parameter.kind in _POSITIONAL]
    if takes_all and _takes_positional_three(parameters, positional, known):
        others = [parameter for parameter in plain if parameter not in positional[: len(POSITIONAL)]]
        for parameter in others:
            if parameter.name not in known and parameter.default is parameter.empty and not open_ended:
                raise SubscriptionError(_unknown(parameter.name, event, label, known))
        return _call_as_transformers_does(handler, known), frozenset(parameter.name for parameter in others)

    names = []
    for parameter in plain:
        if parameter.name in known:
            names.append(parameter.name)
        elif parameter.default is parameter.empty or not (lenient or _is_own_parameter(parameter.name, known)):
            raise SubscriptionError(_unknown(parameter.name, event, label, known))
    if takes_all or names != [parameter.name for parameter in positional]:
        first = tuple(each.name for each in positional if each.kind is each.POSITIONAL_ONLY and each.name in known)
        rest = tuple(name for name in (known if takes_all else names) if name not in first)
        return _call_by_name(handler, first, rest), frozenset(names)
    return _call_in_order(handler, tuple(names)), frozenset(names)


def warn_of_deprecated(event: Event, named: Iterable[str], label: str) -> None:
    """Emit a `FutureWarning` if an event, or a parameter that a handler names, is deprecated.

    Args:
        event: the event of the handler.
        named: the parameters that the handler names.
        label: the name of the handler in the warning.
    """
    found = [(f"the event {event.name!r}", event.deprecated)] if event.deprecated else []
    params = event.all_params
    found += [
        (f"{name!r}", params[name].deprecated) for name in sorted({*named} & {*params}) if params[name].deprecated
    ]
    for what, replacement in found:
        warnings.warn(f"{label} uses {what}, which is deprecated. {replacement}", FutureWarning, stacklevel=4)


def _refuse_suspended(handler: Handler, label: str) -> None:
    """Raise an error for an async or generator function, because a call of such a function does not run its body."""
    if kind := suspended_kind(handler):
        raise SubscriptionError(
            f"{label} is {kind}, so calling it does not run its body. Write a plain function: without `async` "
            "and without `yield`."
        )


def _refuse_without_self(handler: Handler, label: str, known: tuple[str, ...]) -> None:
    """Raise an error for a method without `self`, because its first parameter would receive the callback.

    `known` are the names of the parameters of the event.
    """
    code = getattr(getattr(handler, "__func__", None), "__code__", None)
    if code is None or (not code.co_argcount and code.co_flags & inspect.CO_VARARGS):
        return
    first = code.co_varnames[0] if code.co_argcount else ""
    if not first or first in known:
        name, given = label.rpartition(".")[2], ", ".join(("self", *code.co_varnames[: code.co_argcount]))
        raise SubscriptionError(f"{label} does not take `self`. Write `def {name}({given})`.")


def suspended_kind(function: Any) -> str:
    """Return the kind of an async or generator function, such as `a generator`; an empty text for other functions.

    A call of an async or generator function does not run its body.
    """
    kinds = {
        "an async function": inspect.iscoroutinefunction,
        "an async generator": inspect.isasyncgenfunction,
        "a generator": inspect.isgeneratorfunction,
    }
    for found in (function, getattr(function, "__call__", None)):  # noqa: B004 # an object with an async __call__ is async too
        for kind, is_kind in kinds.items():
            if found is not None and is_kind(found):
                return kind
    return ""


def _check_annotations(handler: Handler, event: Event, label: str, lenient: bool) -> None:
    for param, annotation in contradictions(handler, event.all_params):
        expected = short_type(param.type)
        message = (
            f"{label} annotates {param.name!r} as {annotation}, but {event.name} passes {expected}. "
            f"Write `{param.name}: {expected}`."
        )
        if not lenient:
            raise SubscriptionError(message)
        logger.warning("%s", message)


def in_either_style(handler: Handler) -> Handler:
    """Wrap a handler so that a subclass can call it in the style of transformers.

    Such a call is `super().on_log(args, state, control, **kwargs)`.

    Args:
        handler: a method with keyword-only parameters. Its event must pass each of these parameters.

    Raises:
        TypeError: when a call of the wrapped handler leaves out a parameter.
    """
    names = tuple(inspect.signature(handler).parameters)[1:]
    wanted = {*names}
    fourth = next((name for name in names if name not in (*POSITIONAL, "run")), "")

    @functools.wraps(handler)
    def call(self: Any, *given: Any, **values: Any) -> Any:
        if not given and values.keys() == wanted:  # the bus calls it
            return handler(self, **values)
        values.update(zip((*POSITIONAL, fourth), given))
        missing = [name for name in names if name not in values]
        if missing:
            place = f"super().{handler.__name__}"
            raise TypeError(
                f"`{place}` needs {missing[0]!r}. Pass all values on: `{place}(args, state, control, **kwargs)`."
            )
        return handler(self, **{name: values[name] for name in names})

    return call


def is_called_as_transformers_does(handler: Handler, event: Event) -> bool:
    """Return whether the bus passes args, state and control to a handler by position, and all other values by name."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return True
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return takes_all and _takes_positional_three(parameters, positional, tuple(event.all_params))


def _takes_positional_three(
    parameters: list[inspect.Parameter], positional: list[inspect.Parameter], known: tuple[str, ...]
) -> bool:
    """Return whether a handler with `**kwargs` takes args, state and control by position.

    The first three parameters must be `args, state, control`, or have names outside of `known`, such as `a, s, c`.
    `*args` may stand for all three. If `args`, `state` or `control` is keyword-only, the result is False.

    Args:
        parameters: all parameters of the handler.
        positional: the parameters that a call can pass by position.
        known: the names of all parameters that the event passes, including `args`, `state` and `control`.
    """
    if any(parameter.kind is parameter.KEYWORD_ONLY and parameter.name in POSITIONAL for parameter in parameters):
        return False
    first = [parameter.name for parameter in positional[: len(POSITIONAL)]]
    if tuple(first) == POSITIONAL:
        return True
    variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    return not any(name in known for name in first) and (len(first) == len(POSITIONAL) or variadic)


def _is_own_parameter(name: str, known: tuple[str, ...]) -> bool:
    """Return whether `name` is a parameter that only the handler knows, and not a misspelt parameter of the event.

    The result is True if `name` is not similar to any name in `known`, the parameters of the event, and if no event of
    the catalogue has a parameter `name`.
    """
    return nearest(name, known) == "." and not any(name in other.param_names for other in CATALOG.values())


def _call_as_transformers_does(handler: Handler, known: tuple[str, ...]) -> Call:
    rest = tuple(name for name in known if name not in POSITIONAL)

    def call(run: Any, extras: Mapping[str, Any]) -> Any:
        values = {name: getattr(run, name) for name in rest if name not in extras}
        return handler(run.args, run.state, run.control, **values, **extras)

    return call


def _call_by_name(handler: Handler, first: tuple[str, ...], rest: tuple[str, ...]) -> Call:
    def call(run: Any, extras: Mapping[str, Any]) -> Any:
        named = {name: extras[name] if name in extras else getattr(run, name) for name in rest}
        if not first:
            return handler(**named)
        return handler(*[extras[name] if name in extras else getattr(run, name) for name in first], **named)

    return call


@functools.cache
def _reader(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return a function that reads the attributes `names` of a run.

    Handlers with the same parameters share the function.
    """
    return attrgetter(*names)


def _call_in_order(handler: Handler, names: tuple[str, ...]) -> Call:
    """Return a function that calls a handler with all values by position.

    Most handlers are called in this way. It is the fastest way, because one `attrgetter` reads all values.
    """
    if not names:
        return lambda run, extras: handler()
    read = _reader(names)
    single, wanted = len(names) == 1, frozenset(names)

    def call(run: Any, extras: Mapping[str, Any]) -> Any:
        if extras and not wanted.isdisjoint(extras):
            return handler(*[extras[name] if name in extras else getattr(run, name) for name in names])
        return handler(read(run)) if single else handler(*read(run))

    return call


def _unknown(name: str, event: Event, label: str, known: tuple[str, ...]) -> str:
    elsewhere = [other.name for other in CATALOG.values() if name in other.param_names]
    if elsewhere:
        return f"{label} names {name!r}, which only {', '.join(elsewhere)} can pass."
    return f"{label} names {name!r}, which {event.name} does not pass{nearest(name, known)} Known: {', '.join(known)}."
