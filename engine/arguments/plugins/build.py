"""Build callbacks from texts, with all errors in one message, and write callbacks back as texts."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import FunctionType
from typing import Any

from ....events import trigger_kinds
from ....events.callback import Callback
from ....events.errors import ArgumentError, TrainbusError
from ....events.triggers import Both, Either, Trigger
from .._base import refusal
from ..cli.values import Unreadable
from .names import find, is_own, name_of
from .offers import unbound
from .options import check_options, converted, given_options, set_apart
from .text import Call, Spec, as_text

_FAILURES = (TrainbusError, TypeError, ValueError, ImportError, AttributeError, KeyError, OSError, SystemExit)


def build(texts: Iterable[str], args: Any, find: Callable[[str], Any] = find) -> list[Any]:
    """Build the callbacks that texts describe, in order.

    Args:
        texts: the texts, each with a name and its options.
        args: the training arguments. Functions that build callbacks, and the method `from_arguments` of plugins,
            receive them.
        find: returns the class or function of a name.

    Raises:
        ArgumentError: lists all problems of all texts: unknown names and options, wrong values, and errors of
            constructors.
    """
    built, problems = [], []
    for text in texts:
        found, wrong = built_from(Spec.parse(text), args, find)
        built += found
        problems += wrong
    if problems:
        raise refusal(problems)
    return built


def built_from(spec: Spec, args: Any, find: Callable[[str], Any] = find) -> tuple[list[Any], list[str]]:
    """Build the callbacks that a parsed text describes. Return the callbacks, and the problems of the text.

    If there is a problem, the list of callbacks is empty. For `args` and `find`, see the function `build`.
    """
    try:
        target = find(spec.name)
    except (TrainbusError, Unreadable) as error:
        return [], [str(error)]
    values, problems = check_options(target, spec.options, spec.name)
    if problems:
        return [], problems
    try:
        return _make(target, values, args), []
    except _FAILURES as error:
        said = str(error) if isinstance(error, TrainbusError) else f"{type(error).__name__}: {error}"
        return [], [f"`{spec}`: {said}"]


def _make(target: Any, values: dict[str, Any], args: Any) -> list[Any]:
    target, bound = unbound(target)
    values = {**bound, **values}
    if not isinstance(target, type):
        made = target(args, **values)
        return [each for each in (made if isinstance(made, (list, tuple)) else [made]) if each is not None]
    if not issubclass(target, Callback):
        return [target(**values)]
    if not values and reads_arguments(target) and not is_own(target):
        found = target.from_arguments(args)
        if found is not None:
            return [found]
    apart = set_apart(target, values)
    made = target(**{name: value for name, value in values.items() if name not in apart})
    for name, value in apart.items():
        object.__setattr__(made, name, value)  # it may be a frozen dataclass
    return [made]


def reads_arguments(target: Any) -> bool:
    """Return whether a target is a callback class that builds itself from the training arguments (`from_arguments`)."""
    if not (isinstance(target, type) and issubclass(target, Callback)):
        return False
    function = getattr(target.from_arguments, "__func__", target.from_arguments)
    return function is not Callback.from_arguments.__func__  # type: ignore[attr-defined]


def written(callbacks: Iterable[Any]) -> list[str]:
    """Return the texts of callbacks, each with the options that differ from their defaults.

    Raises:
        ArgumentError: lists every option with a value that cannot be written as text, such as a lambda or a dataset.
    """
    texts, problems = [], []
    for callback in callbacks:
        try:
            texts.append(str(spec_of(callback)))
        except ArgumentError as error:
            problems.append(str(error))
    if problems:
        raise refusal(problems)
    return texts


def spec_of(callback: Any) -> Spec:
    """Convert a callback to the name of its class, and the options that differ from their defaults.

    Raises:
        ArgumentError: if a value cannot be written as text, or if the class of the callback is defined inside a
            function or in the module `__main__`.
    """
    cls = type(callback)
    name = name_of(cls)
    if "<locals>" in name or cls.__module__ == "__main__":
        raise ArgumentError(f"{cls.__name__} is defined in {cls.__module__}; move it to a module that can be imported.")
    options = {}
    for option, value in given_options(callback):
        try:
            options[option.name] = literal(value)
            if as_text(literal(converted(options[option.name], option.hint))) != as_text(options[option.name]):
                raise ArgumentError("it does not read back as the same value")
        except (ArgumentError, Unreadable) as error:
            raise ArgumentError(f"{cls.__name__}.{option.name} cannot be written as text: {error}") from error
    return Spec(name, options)


def literal(value: Any) -> Any:
    """Convert a value to one that the text of a callback can contain: a literal, a trigger or a `Call`.

    Raises:
        ArgumentError: if the value cannot be converted.
    """
    if isinstance(value, Enum):
        return literal(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        items = [literal(each) for each in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, (set, frozenset)):
        return sorted((literal(each) for each in value), key=as_text)
    if isinstance(value, dict):
        return {literal(key): literal(each) for key, each in value.items()}
    if isinstance(value, Trigger):
        return _trigger(value)
    if isinstance(value, (type, FunctionType)):
        return _reference(value)
    if dataclasses.is_dataclass(value):
        return Call(type(value).__name__, {option.name: literal(each) for option, each in given_options(value)})
    raise ArgumentError(f"{value!r} is not a literal")


def _trigger(trigger: Trigger) -> Any:
    if all(type(each).__module__ == trigger_kinds.__name__ for each in parts_of(trigger)):
        return trigger
    if isinstance(trigger, (Either, Both)):
        raise ArgumentError(f"{trigger!r} combines a trigger of another package")
    values = Spec(_reference(type(trigger)), {option.name: literal(each) for option, each in given_options(trigger)})
    return f"{values}" if values.options else f"{values}()"


def parts_of(trigger: Trigger) -> Iterator[Trigger]:
    """Yield the triggers that a combined trigger, such as `every(100) | at_end()`, consists of.

    If the trigger is not combined, yield the trigger itself.
    """
    if isinstance(trigger, (Either, Both)):
        yield from parts_of(trigger.left)
        yield from parts_of(trigger.right)
    else:
        yield trigger


def _reference(value: Any) -> str:
    if "<" in value.__qualname__ or value.__module__ == "__main__":
        raise ArgumentError(f"{value.__qualname__} is not defined at the top level of a module that can be imported")
    return f"{value.__module__}:{value.__qualname__}"


def as_yaml(callbacks: Iterable[Any]) -> str:
    """Return YAML text that sets the argument `callbacks` of a configuration file to these callbacks.

    Raises:
        ArgumentError: if a value cannot be written as text.
    """
    lines = [f"  - {_quoted(text)}\n" for text in written(callbacks)]
    return "callbacks:\n" + "".join(lines) if lines else "callbacks: []\n"


def _quoted(text: str) -> str:
    """Return a text as a scalar of YAML, in quotes if YAML would read the plain text as another value."""
    plain = not any(mark in text for mark in (": ", " #", "'", '"', "{", "[", ",", "&", "|"))
    return text if plain and text.isprintable() else json.dumps(text, ensure_ascii=False)
