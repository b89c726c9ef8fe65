"""The checks that need no knowledge of a field beyond its annotation and what `arg` said of it."""

from __future__ import annotations

import copy
import json
import os
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import Field, fields
from enum import Enum, EnumMeta
from functools import cache
from numbers import Integral, Real
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ...events.errors import nearest
from ._base import Group, default_of
from .serialization import mask
from .unsupported import instead

G = TypeVar("G", bound=Group)

hints_of: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def normalised(field: Field[Any], value: Any) -> Any:
    """Bring `value` into its one spelling. What is not understood comes back as it is, for the checks to name."""
    allowed = field.metadata
    if value == mask(field.name):
        return default_of(field)
    if allowed.get("path"):
        if value is None:
            return default_of(field)
        return os.path.expanduser(os.fspath(value)) if isinstance(value, (str, os.PathLike)) else value
    if allowed.get("json") and isinstance(value, os.PathLike):
        return os.fspath(value)
    if allowed.get("json") and isinstance(value, str):
        with suppress(ValueError):
            return json.loads(value)
    if choices := allowed.get("choices"):
        if isinstance(choices, EnumMeta):
            with suppress(ValueError):
                return choices("no" if value is False else value)  # YAML reads a bare `no` as False
        if isinstance(value, Enum):  # transformers' SchedulerType, OptimizerNames
            return value.value
    return value


def wrong_types(args: Group, declared: type[Group]) -> dict[str, str]:
    """Name -> problem, for the fields of `declared` whose value in `args` does not fit their annotation."""
    hints = hints_of(declared)
    return {
        field.name: f"`{field.name}` is {value!r} ({type(value).__name__}); it takes {field.type}."
        for field in fields(declared)
        if not fits(value := getattr(args, field.name), hints[field.name])
    }


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of the type `hint`. NumPy's numbers are numbers; a bool is none, though Python has it so."""
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


def unknown_names(args: Group, declared: type[Group]) -> Iterator[str]:
    """The problems of fields of `declared` with a closed set of `choices` whose value in `args` is none of them."""
    for field in fields(declared):
        value, choices = getattr(args, field.name), field.metadata.get("choices")
        if choices is not None and value not in (known := [*choices]):
            listed = ", ".join(repr(getattr(choice, "value", choice)) for choice in known)
            left_out = instead(field.name, value)
            hint = "." if left_out else nearest(value, known)
            yield f"`{field.name}` is {value!r}{hint} Known: {listed}.{left_out}"


def with_defaults(args: G, names: Iterable[str]) -> G:
    """A copy of `args` with the defaults under `names`: one on which the checks that compute can run."""
    sound = copy.copy(args)
    defaults = {field.name: default_of(field) for field in fields(args)}
    vars(sound).update({name: defaults[name] for name in names})
    return sound
