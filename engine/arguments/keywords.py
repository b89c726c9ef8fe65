"""Read the keywords of `TrainingArguments(...)`: translate aliases, refuse unknown names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from ...events.errors import SYNONYMS, closest
from ._base import default_of, refusal
from ._checks import normalize
from .aliases import ALIASES, ELSEWHERE, not_an_argument
from .unsupported import reason_against, unsupported_arguments

T = TypeVar("T")


class AliasMeta(type):
    """Metaclass that resolves aliases in the keywords of a call before the generated `__init__` runs.

    `@dataclass` generates a new `__init__` for every subclass with new fields. A wrapper around the `__init__` of the
    base class would not reach these subclasses. A metaclass works for all subclasses.
    """

    def __call__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        parameters = inspect.signature(cls).parameters
        known = set(parameters)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            known |= kwargs.keys() - ALIASES.keys()  # an `__init__` with **kwargs decides itself what it accepts
        made: T = type.__call__(cls, *args, **resolve_aliases(kwargs, known, partial(_problems_of, cls)))
        return made

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of `__init__`. Without this property, editors show the parameters of `__call__`."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # the __init__ of the class, not of an instance
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _no_problems(settings: Mapping[str, Any]) -> Iterable[str]:
    return ()


def resolve_aliases(
    kwargs: Mapping[str, Any],
    known: Collection[str],
    problems_of: Callable[[Mapping[str, Any]], Iterable[str]] = _no_problems,
) -> dict[str, Any]:
    """Return `kwargs` with aliases replaced by the `known` names. Emits one `FutureWarning` for all outdated aliases.

    An alias with the value None sets nothing.

    Args:
        kwargs: Names and values, as the user gives them.
        known: The names of the arguments. These names are not translated.
        problems_of: A function that takes values by argument name, and returns their problems. If a name or an alias is
            wrong, `resolve_aliases` calls `problems_of`, so that the error also lists wrong values. `problems_of` gets
            the value of a misspelt name under the closest known name.

    Raises:
        ArgumentError: Lists unknown and unsupported names, invalid values of aliases, and arguments that have different
            values under several names. If there is any of these, the error also lists the problems of other values.
    """
    settings = {name: value for name, value in kwargs.items() if name in known}
    sources = {name: (name, value) for name, value in settings.items()}
    misspelt: dict[str, Any] = {}
    problems, outdated = [], []
    unsupported = unsupported_arguments()
    for name, value in kwargs.items():
        if name in known:
            continue
        if name in unsupported:
            if value is not None:
                problems.append(f"`{name}` is not supported: {unsupported[name]}")
            continue
        if name not in ALIASES:
            problems.append(not_an_argument(name, known))
            if name not in SYNONYMS and name not in ELSEWHERE and (meant := closest(name, known)):
                misspelt[meant] = value
            continue
        new, translate, is_outdated, valid = ALIASES[name]
        if value is not None and valid and value not in valid:
            listed = ", ".join(map(repr, valid))
            problems.append(f"`{name}` is {value!r}; it takes {listed}.{reason_against(name, value)}")
            continue
        if is_outdated:
            outdated.append(f"`{name}` is now `{new}`" if new else f"`{name}` has no effect; remove it")
        translated = None if value is None else translate(value)
        if translated is None or not new:
            continue
        if settings.setdefault(new, translated) != translated:
            other, other_value = sources[new]
            problems.append(f"`{name}` is {value!r}, but `{other}` is {other_value!r}; set only `{new}`.")
        sources.setdefault(new, (name, value))
    if problems:
        raise refusal([*problems, *problems_of({**misspelt, **settings})])
    if outdated:
        warnings.warn(f"{', '.join(outdated)}.", FutureWarning, stacklevel=3)
    return settings


def _problems_of(cls: type[Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of the values in `settings`, the keywords of a call of `cls`.

    `resolve_aliases` calls this function if a name in the call is wrong, so that the error also lists wrong values.
    """
    trial = object.__new__(cls)
    for field in fields(cls):
        setattr(trial, field.name, normalize(field, settings.get(field.name, default_of(field))))
    yield from trial.problems()
