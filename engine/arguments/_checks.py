"""Generic functions that normalize and check values by the declaration of their field: type, default, `choices`."""

from __future__ import annotations

import copy
import os
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import Field, fields
from enum import Enum, EnumMeta
from functools import cache
from numbers import Integral, Real
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ...events.errors import ArgumentError, nearest
from ._base import Group, default_of
from .plugins.text import as_texts
from .serialization import is_configuration, mask
from .unique_keys import DuplicateKey, parse_json
from .unsupported import reason_against

G = TypeVar("G", bound=Group)

hints_of: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def normalize(field: Field[Any], value: Any) -> Any:
    """Return `value` in the form in which `field` stores it.

    For example, text becomes an enum member, JSON text is parsed, and `~` in a path is expanded. The placeholder of a
    masked secret becomes the default. An invalid value is returned unchanged, for the checks.
    """
    allowed = field.metadata
    if (value is None and allowed.get("none")) or (isinstance(value, str) and value == mask(field.name)):
        return default_of(field)
    if allowed.get("texts"):
        return as_texts(value)
    if allowed.get("path"):
        if value is None:
            return default_of(field)
        return os.path.expanduser(os.fspath(value)) if isinstance(value, (str, os.PathLike)) else value
    if (kind := allowed.get("object")) and is_configuration(value):
        return kind.read(value)
    if allowed.get("json") and isinstance(value, os.PathLike):
        return os.fspath(value)
    if allowed.get("json") and isinstance(value, str):
        try:
            return parse_json(value)
        except DuplicateKey as error:
            raise ArgumentError(f"`{field.name}`: {error}.") from error
        except ValueError:  # a path, or text that is not valid
            return value
    if choices := allowed.get("choices"):
        enum = allowed.get("enum", choices)
        if isinstance(enum, EnumMeta):
            with suppress(ValueError):
                return enum("no" if value is False else value)  # YAML reads a bare `no` as False
        if isinstance(value, Enum):  # an enum of transformers, such as SchedulerType
            return value.value
    return value


def type_problems(args: Group, declared: type[Group]) -> dict[str, str]:
    """Return the problems of values in `args` with the wrong type: field name -> problem.

    Only the fields of the class `declared` are checked.
    """
    hints = hints_of(declared)
    return {
        field.name: f"`{field.name}` is {value!r} ({type(value).__name__}); it takes {field.type}.{_remedy(value)}"
        for field in fields(declared)
        if not (fits(value := getattr(args, field.name), hints[field.name]) or field.metadata.get("texts"))
    }


def _remedy(value: Any) -> str:
    """Return a sentence that says where to pass `value`, if it is a callback or a list with a callback.

    For any other value, return an empty string.
    """
    found = next(
        (each for each in (value if isinstance(value, (list, tuple)) else [value]) if _is_callback(each)), None
    )
    return "" if found is None else " Pass the callback to the Trainer: `callbacks=[...]`."


def _is_callback(value: Any) -> bool:
    return hasattr(value, "on_step_end") or hasattr(value, "stage")


def fits(value: Any, hint: Any) -> bool:
    """Return whether `value` fits the type `hint`. A NumPy number may fit `int` or `float`. A bool fits neither."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    if kind in (Union, types.UnionType):
        return any(fits(value, choice) for choice in inner)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is list:
        return isinstance(value, (list, tuple)) and all(fits(item, inner[0]) for item in value)
    return isinstance(value, kind)


def choice_problems(args: Group, declared: type[Group]) -> Iterator[str]:
    """Yield a problem for each value in `args` that is not one of the `choices` of its field.

    Only the fields of the class `declared` are checked.
    """
    for field in fields(declared):
        value, choices = getattr(args, field.name), field.metadata.get("choices")
        if choices is not None and value not in (known := [*choices]):
            listed = ", ".join(repr(getattr(choice, "value", choice)) for choice in known)
            reason = reason_against(field.name, value)
            hint = "." if reason else nearest(value, known)
            yield f"`{field.name}` is {value!r}{hint} Known: {listed}.{reason}"


def with_defaults(args: G, names: Iterable[str]) -> G:
    """Return a copy of `args` in which the fields `names` have their default values.

    The checks of the other fields can then compute with valid values.
    """
    valid = copy.copy(args)
    defaults = {field.name: default_of(field) for field in fields(args)}
    vars(valid).update({name: defaults[name] for name in names})
    return valid
