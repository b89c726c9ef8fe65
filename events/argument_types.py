"""Type checks of constructor arguments: a value of a wrong type, such as a text for a number, raises an error.

The error names the argument, the value and the expected type. If the value is easy to convert, the error also says what
to write.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from .errors import ArgumentError


def is_number(value: Any) -> bool:
    """Return whether a value is a number, such as a NumPy number or a tensor with one number. True is not a number."""
    return not isinstance(value, (str, bytes)) and not _is_bool(value) and _converts(float, value)


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, such as 3, 1e6 or a NumPy integer. True is not a number."""
    if isinstance(value, float):
        return value.is_integer()  # such as 1e6
    return not _is_bool(value) and _converts(operator.index, value)


def _converts(convert: Callable[[Any], Any], value: Any) -> bool:
    try:
        convert(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: of a tensor with several elements
        return False
    return True


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # of NumPy


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (is_whole, "a whole number"),
    "float": (is_number, "a number"),
    "bool": (_is_bool, "True or False"),
    "str": (_is_text, "a text"),
    "None": (lambda value: value is None, "None"),
}
"""Annotation -> whether a value has this type, and the name of the type in errors."""

Types = Mapping[str, tuple[str, ...]]
"""Parameter -> the simple types that its annotation allows."""


@lru_cache(maxsize=512)
def simple_types(cls: type[Any]) -> Types:
    """Return the parameters of a constructor with simple types: `int`, `float`, `bool`, `str`, None and their unions.

    The result has only parameters that a class of trainbus declares.
    """
    init: Any = cls.__init__
    found = {}
    for name, annotation in getattr(init, "__annotations__", {}).items():
        types = tuple(str(annotation).split(" | "))
        owner = next((base for base in cls.__mro__ if name in vars(base).get("__annotations__", ())), None)
        module = init.__module__ if owner is None else owner.__module__
        if name != "return" and module.partition(".")[0] == "trainbus" and all(each in _TYPES for each in types):
            found[name] = types
    return found


def check_types(label: str, given: Mapping[str, Any], types: Types) -> None:
    """Check that arguments have the types of their parameters: `int`, `float`, `bool`, `str` or None.

    NumPy numbers and tensors with one number count as numbers, and paths count as texts. True and False do not count
    as numbers.

    Args:
        label: the class, as the error names it.
        given: the arguments of the call, by name.
        types: the result of `simple_types`.

    Raises:
        ArgumentError: for the first wrong value. The error names the argument, the value and the remedy.
    """
    for name, value in given.items():
        allowed = types.get(name, ())
        if allowed and not any(_TYPES[each][0](value) for each in allowed):
            takes = " or ".join(_TYPES[each][1] for each in allowed)
            raise ArgumentError(f"{label}({name}={value!r}): {name} takes {takes}.{_remedy(name, value, allowed)}")


def _remedy(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return the advice to write a number instead of `value`; an empty text if `value` is not easy to convert."""
    readers: dict[str, Callable[[Any], Any]] = {"int": int, "float": float}
    for each in allowed:
        try:
            read = readers[each](value)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if isinstance(value, str) or (read == value and not _is_bool(value)):
            return f" Write {name}={read}."
    return ""
