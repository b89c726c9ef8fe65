"""Check the annotations of handlers against the types in the catalogue of events, when a callback is attached.

The check refuses only annotations that are certainly wrong, such as `logs: int`. It accepts every annotation that it
cannot resolve.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from .catalog import COMMON, EVENTS, Param
from .checker_imports import checker_imports

_UNIONS = (typing.Union, types.UnionType)
_NUMBERS = (int, float, complex)


def contradictions(handler: Callable[..., Any], params: Mapping[str, Param]) -> list[tuple[Param, str]]:
    """Return the annotations of a handler that contradict the types of the event's parameters.

    Each item is a pair: the parameter of the event, and the annotation as text. The list is also empty if the
    annotations of the handler cannot be read.

    Args:
        handler: a function, a bound method or another callable.
        params: the parameters of the event, by name.
    """
    function = inspect.unwrap(handler)
    if inspect.ismethod(function):
        function = function.__func__
    elif not inspect.isfunction(function):
        function = type(function).__call__
    if not inspect.isfunction(function):
        return []
    names = function.__globals__
    return [
        (params[name], _text(annotation))
        for name, annotation in function.__annotations__.items()
        if name in params and _contradicts(classes_of(annotation, names), params[name].type)
    ]


def classes_of_field(cls: type, name: str) -> tuple[type, ...] | None:
    """Return the classes that the annotation of a dataclass field allows.

    Return None if the annotation allows any class, or if the annotation cannot be resolved.
    """
    owner = next((base for base in cls.__mro__ if name in inspect.get_annotations(base)), cls)
    annotation = inspect.get_annotations(owner).get(name, Any)
    return classes_of(annotation, names_of_module(owner.__module__))


def names_of_module(module: str) -> dict[str, Any]:
    """Return the global names of a module: name -> object.

    If the program has not imported the module, return the names of `typing`.
    """
    return vars(sys.modules.get(module, typing))


def resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """Return the type of an annotation. Evaluate an annotation that is a text.

    Args:
        annotation: the annotation.
        names: the global names of the module with the annotation. The function also finds names that this module
            imports only for type checkers.

    Returns:
        The type; `Any` if the annotation cannot be evaluated.
    """
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    with suppress(Exception):
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    with suppress(Exception):  # a name of a local scope
        return typing.get_type_hints(holder, {**checker_imports(names), **names}, include_extras=True)["it"]
    return Any


def short_type(type: str) -> str:
    """Return the text of a type without module paths: `Tensor | None` for `torch.Tensor | None`."""
    return " | ".join(_short(part) for part in type.split(" | "))


def _short(part: str) -> str:
    name, bracket, rest = part.partition("[")
    return name.rpartition(".")[2] + bracket + rest


def _contradicts(annotated: tuple[type, ...] | None, expected: str) -> bool:
    """Return whether the annotation of a handler's parameter is certainly wrong.

    The annotation is certainly wrong if no value of the expected type can belong to the annotated classes.

    Args:
        annotated: the classes that the annotation allows. None means any class, and is never wrong.
        expected: the type in the catalogue of events, as text, such as `torch.Tensor | None`.
    """
    if annotated is None:
        return False
    values = _expected_classes(expected)
    if not values or any(_related(cls, value) for cls in annotated for value in values):
        return False
    # An unrelated class is not always wrong: a model may also inherit from the class that the handler names. A builtin
    # class and the class of another parameter are always wrong.
    builtin_values = all(value.__module__ == "builtins" for value in values)
    return builtin_values or all(cls.__module__ == "builtins" or cls in _catalogue_classes() for cls in annotated)


def _related(annotated: type, value: type) -> bool:
    """Return whether an object may belong to both classes."""
    if annotated in _NUMBERS and value in _NUMBERS:
        return True
    if annotated.__name__ == value.__name__:
        return True  # a class of another library with the same name, such as transformers.TrainerState
    try:
        return issubclass(value, annotated) or issubclass(annotated, value)
    except TypeError:  # some classes do not support issubclass
        return True


def classes_of(annotation: Any, names: dict[str, Any]) -> tuple[type, ...] | None:
    """Return the classes that an annotation allows; None if it allows any class or cannot be resolved.

    Args:
        annotation: the annotation, as a type or as text.
        names: the global names of the module with the annotation, to evaluate a text.
    """
    if isinstance(annotation, str):
        annotation = resolved(annotation, names)
    origin = typing.get_origin(annotation)
    if origin in _UNIONS:
        members = [classes_of(member, names) for member in typing.get_args(annotation)]
        return None if None in members else tuple(cls for member in members for cls in member or ())
    if origin is typing.Annotated:
        return classes_of(typing.get_args(annotation)[0], names)
    if annotation is None:
        return (types.NoneType,)
    cls = origin if isinstance(origin, type) else annotation
    if not isinstance(cls, type) or cls is Any or cls is object or getattr(cls, "_is_protocol", False):
        return None
    return (dict,) if typing.is_typeddict(cls) else (cls,)


def _expected_classes(expected: str) -> tuple[type, ...]:
    """Return the classes in a type that is written as text. Leave out `None`.

    Return an empty tuple if the text contains `Any`, or a class that the program has not imported yet.

    Args:
        expected: the type of an event's parameter, as text, such as `torch.Tensor | None`.
    """
    parts = [part.partition("[")[0] for part in expected.split(" | ") if part != "None"]
    found = []
    for part in parts:
        module, _, name = part.rpartition(".")
        cls = getattr(sys.modules.get(module or "builtins"), name, None)
        if not isinstance(cls, type):
            return ()
        found.append(cls)
    return tuple(found)


def _catalogue_classes() -> set[type]:
    types = {param.type for param in (*COMMON, *(param for event in EVENTS for param in event.params))}
    return {cls for type in types for cls in _expected_classes(type)}


def _text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
